# Decides once whether the CUDA backend is built: KVTIER_HAVE_CUDA. CUDA code compiles without a GPU;
# a machine with one finds it at run time.

set(KVTIER_HAVE_CUDA OFF)
if(NOT KVTIER_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  if(NOT CMAKE_CUDA_COMPILER AND EXISTS /usr/local/cuda/bin/nvcc)
    set(CMAKE_CUDA_COMPILER /usr/local/cuda/bin/nvcc)
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # Hopper as machine code, anything from Ampere on by PTX.
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 90-real 80-virtual)
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(KVTIER_HAVE_CUDA ON)
  elseif(KVTIER_CUDA STREQUAL "ON")
    message(FATAL_ERROR "KVTIER_CUDA=ON but no CUDA compiler was found; "
                        "put nvcc on PATH, set CMAKE_CUDA_COMPILER, or use KVTIER_CUDA=AUTO")
  endif()
endif()
message(STATUS "kvtier: CUDA backend ${KVTIER_HAVE_CUDA}")
