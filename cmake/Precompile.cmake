# With GMA_PRECOMPILE the standard headers are compiled once for many sources.
# precompiled(TARGET LIBRARY HEADERS...) makes TARGET, which has them, with LIBRARY's flags;
# precompile(USER TARGET) lets another target with these flags use it. The presets dev and audit do without:
# there a source that lacks an #include is found.
function(precompiled target library)
    if(GMA_PRECOMPILE)
        set(empty ${CMAKE_CURRENT_BINARY_DIR}/${target}.cpp)
        file(CONFIGURE OUTPUT ${empty} CONTENT "")
        add_library(${target} OBJECT ${empty})
        target_link_libraries(${target} PRIVATE ${library})
        target_precompile_headers(${target} PRIVATE
            <algorithm> <array> <atomic> <deque> <functional> <map> <memory> <mutex> <optional>
            <random> <set> <string> <thread> <unordered_map> <vector> ${ARGN})
    endif()
endfunction()

function(precompile user target)
    if(GMA_PRECOMPILE)
        target_precompile_headers(${user} REUSE_FROM ${target})
    endif()
endfunction()
