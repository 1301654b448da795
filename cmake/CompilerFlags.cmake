# gma_flags: what every target of ours is compiled with.
add_library(gma_flags INTERFACE)
target_compile_options(gma_flags INTERFACE
    -Wall -Wextra -Wconversion -Wshadow -Wundef -Wold-style-cast -Wimplicit-fallthrough)
# Two false alarms of GCC 12: the value of a Result that has none as uninitialised, at -O1 and with
# TSan; "text" + std::string as overlapping (GCC bug 105651), at -O2 and above.
target_compile_options(gma_flags INTERFACE
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized -Wno-restrict>)
if(GMA_WERROR)
    target_compile_options(gma_flags INTERFACE -Werror)
endif()
set(sanitized 0)
if(GMA_SANITIZE)
    set(sanitized 1)
    set(sanitize -fsanitize=${GMA_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_compile_options(gma_flags INTERFACE ${sanitize})
    target_link_options(gma_flags INTERFACE ${sanitize})
endif()
# Always defined, as 0 or 1, so that -Wundef catches a misspelt name.
target_compile_definitions(gma_flags INTERFACE
    GMA_AUDIT_EVERY_CALL=$<BOOL:${GMA_AUDIT_EVERY_CALL}> GMA_SANITIZED=${sanitized})
