# How everything below this folder is compiled.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

find_program(HEDDLE_CCACHE ccache)
if(PROJECT_IS_TOP_LEVEL AND HEDDLE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(ccache ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${HEDDLE_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${ccache})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${ccache})
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)  # else it can't see what is precompiled
endif()

# A sum must have one value on every backend, so a fused multiply-add is written out where it is meant.
add_compile_options(
  $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>
  "$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;-Xcompiler=-ffp-contract=off>")
# nvcc's front end stops at fmt's consteval constructors.
add_compile_definitions("$<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1;FMT_CONSTEVAL=>")
if(HEDDLE_TESTS)
  add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:--no-compress>)  # scripts/list_kernels.py reads the code
endif()

if(HEDDLE_SANITIZE)
  add_compile_options(-fsanitize=${HEDDLE_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${HEDDLE_SANITIZE})
  if(HEDDLE_SANITIZE MATCHES undefined)
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
  if(HEDDLE_SANITIZE STREQUAL thread)
    # asio's fences are invisible to ThreadSanitizer, which would report the data they order.
    add_compile_definitions(ASIO_DISABLE_FENCED_BLOCK)
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-tsan>)
  endif()
endif()

# Warnings are errors where the tests are built, so not for whoever only installs with another compiler. Designated initialisers name what differs
# from the default, so the fields they leave out are no mistake.
add_library(heddle_warnings INTERFACE)
target_compile_options(heddle_warnings INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wno-missing-field-initializers>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>")
if(HEDDLE_TESTS)
  target_compile_options(heddle_warnings INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:-Werror>" "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>")
endif()

# What most of the compile time of a small file goes to, compiled once. Only without does a missing #include show.
option(HEDDLE_PCH "Precompile common headers" ON)
set(heddle_common_headers <fmt/format.h> <fmt/ranges.h> <algorithm> <array> <atomic> <chrono> <functional> <map> <memory> <mutex>
  <optional> <span> <string> <thread> <utility> <vector>)

# Compiles the common headers and more for the C++ files of a target.
function(heddle_precompile target)
  if(NOT HEDDLE_PCH)
    return()
  endif()
  set(headers ${ARGN} ${heddle_common_headers})
  list(TRANSFORM headers REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:\\1>")
  target_precompile_headers(${target} PRIVATE ${headers})
endfunction()

# Lets a program use what was compiled for a library: so it has to be compiled as if it were one.
function(heddle_precompile_as program library)
  if(NOT HEDDLE_PCH)
    return()
  endif()
  set_target_properties(${program} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${program} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fPIC>)
  target_precompile_headers(${program} REUSE_FROM ${library})
endfunction()
