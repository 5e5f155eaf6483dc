# Finds a CUDA compiler: CMAKE_CUDA_COMPILER or $CUDACXX, PATH, the project's .venv (scripts/setup puts one there),
# /usr/local/cuda. Sets HEDDLE_CUDA_FOUND to say which, or to nothing.
set(HEDDLE_CUDA_FOUND)
if(HEDDLE_CUDA STREQUAL OFF)
  return()
endif()

file(GLOB venv_cuda ${CMAKE_CURRENT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu1*/bin)
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(HEDDLE_NVCC nvcc HINTS ENV PATH PATHS ${venv_cuda} /usr/local/cuda/bin)
  # Who did not ask for kernels shall not fail for want of a newer compiler.
  if(HEDDLE_NVCC AND HEDDLE_CUDA STREQUAL AUTO)
    execute_process(COMMAND ${HEDDLE_NVCC} --version OUTPUT_VARIABLE version ERROR_QUIET)
    if(version MATCHES "release ([0-9.]+)" AND CMAKE_MATCH_1 VERSION_LESS 13.0)
      message(STATUS "heddle: ${HEDDLE_NVCC} is of CUDA ${CMAKE_MATCH_1}, the kernels need 13.0 or later")
      return()
    endif()
  endif()
  if(HEDDLE_NVCC)
    set(CMAKE_CUDA_COMPILER ${HEDDLE_NVCC} CACHE FILEPATH "CUDA compiler")
  endif()
endif()

# Nothing in the kernels is for one architecture later than 9.0, so sm_100 and sm_120 are assembled from what is
# compiled once for 9.0, and GPUs later than those compile it themselves when they first load it. sm_86 and sm_89 run
# sm_80's code, sm_103 sm_100's, sm_121 sm_120's. An older GPU gets an error that says so. Whoever sets
# CMAKE_CUDA_ARCHITECTURES gets those.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  add_compile_options($<$<COMPILE_LANGUAGE:CUDA>:--generate-code=arch=compute_80,code=[sm_80]>
    $<$<COMPILE_LANGUAGE:CUDA>:--generate-code=arch=compute_90,code=[compute_90,sm_90,sm_100,sm_120]>)
  set(HEDDLE_CUDA_GPUS 80 86 89 90 100 103 120 121)  # that must have code, whichever architecture's it is
else()
  set(HEDDLE_CUDA_GPUS ${CMAKE_CUDA_ARCHITECTURES})
endif()

include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25.1, Debian 12's, does not know it yet
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  find_package(CUDAToolkit REQUIRED)
  set(HEDDLE_CUDA_FOUND "${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION} for ${HEDDLE_CUDA_GPUS}")
endif()
