# GMA_VERSION from pyproject.toml, and GMA_GIT_ID where there is a repository (else empty).
file(STRINGS ${CMAKE_CURRENT_SOURCE_DIR}/pyproject.toml GMA_VERSION REGEX "^version = \"")
string(REGEX REPLACE "^version = \"([0-9.]+).*$" "\\1" GMA_VERSION "${GMA_VERSION}")
if(NOT GMA_VERSION MATCHES "^[0-9]+\\.[0-9]+\\.[0-9]+$")
    message(FATAL_ERROR "pyproject.toml has no line of the form: version = \"1.2.3\"")
endif()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS pyproject.toml)

set(GMA_GIT_ID "")
find_program(GMA_GIT git)
mark_as_advanced(GMA_GIT)
if(GMA_GIT AND EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/.git)
    execute_process(
        COMMAND ${GMA_GIT} rev-parse --short=12 HEAD
        WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
        OUTPUT_VARIABLE GMA_GIT_ID OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
