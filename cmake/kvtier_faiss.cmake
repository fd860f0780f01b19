# Decides once whether the selector `faiss`, a baseline, is built: KVTIER_HAVE_FAISS. FAISS is a static library
# in Debian and brings BLAS, LAPACK and an OpenMP runtime with it; its target names the latter without finding it.

set(KVTIER_HAVE_FAISS OFF)
if(NOT KVTIER_FAISS STREQUAL "OFF")
  find_package(OpenMP QUIET COMPONENTS CXX)
  find_package(faiss CONFIG QUIET)
  if(OpenMP_CXX_FOUND AND faiss_FOUND)
    set(KVTIER_HAVE_FAISS ON)
  elseif(KVTIER_FAISS STREQUAL "ON")
    message(FATAL_ERROR "KVTIER_FAISS=ON but FAISS or OpenMP was not found; install libfaiss-dev, add FAISS's "
                        "folder to CMAKE_PREFIX_PATH, or use KVTIER_FAISS=AUTO")
  endif()
endif()
message(STATUS "kvtier: FAISS selector ${KVTIER_HAVE_FAISS}")
