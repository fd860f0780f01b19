# The installed package: find_package(kvtier CONFIG) with kvtier::kvtier and a target per room, and kvtier.pc.

include(CMakePackageConfigHelpers)

set(kvtier_cmake_dir "${CMAKE_INSTALL_LIBDIR}/cmake/kvtier")
get_property(kvtier_rooms GLOBAL PROPERTY KVTIER_ROOMS)

# Headers name each other from the project's root, so they go under a folder of ours that becomes the
# include directory: no bare <cpu/...> or <runtime/...> in everybody's include path.
install(TARGETS ${kvtier_rooms} EXPORT kvtier_targets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
        FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/kvtier")
install(TARGETS kvtier_umbrella EXPORT kvtier_targets)
if(TARGET kvtier_gpu_cuda)
  install(TARGETS kvtier_gpu_cuda EXPORT kvtier_targets
          ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" OBJECTS DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
install(EXPORT kvtier_targets NAMESPACE kvtier:: FILE kvtierTargets.cmake
        DESTINATION "${kvtier_cmake_dir}")

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/kvtier_config.cmake.in"
                              "${PROJECT_BINARY_DIR}/kvtierConfig.cmake"
                              INSTALL_DESTINATION "${kvtier_cmake_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/kvtierConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/kvtierConfig.cmake"
              "${PROJECT_BINARY_DIR}/kvtierConfigVersion.cmake"
        DESTINATION "${kvtier_cmake_dir}")

# Static libraries, so whoever links them needs what they need: Requires, not Requires.private. Users come
# before what they use.
set(kvtier_pc_libraries)
foreach(room runtime lsh gpu gpu_cuda storage cpu)
  if(TARGET kvtier_${room})
    get_target_property(type kvtier_${room} TYPE)
    if(type STREQUAL "STATIC_LIBRARY")
      string(APPEND kvtier_pc_libraries " -lkvtier_${room}")
    endif()
  endif()
endforeach()
set(kvtier_pc_requires "hwloc, tbb, libxxhash")
if(LIBURING_FOUND)
  string(APPEND kvtier_pc_requires ", liburing")
endif()
set(kvtier_pc_system "-pthread")
if(KVTIER_HAVE_CUDA)
  string(APPEND kvtier_pc_system " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
endif()
if(KVTIER_HAVE_FAISS)
  get_target_property(kvtier_faiss_file faiss LOCATION)
  list(JOIN OpenMP_CXX_LIBRARIES " " kvtier_openmp)
  string(APPEND kvtier_pc_system " ${kvtier_faiss_file} -llapack -lblas ${kvtier_openmp}")
endif()
foreach(sanitizer IN LISTS KVTIER_SANITIZE)
  string(APPEND kvtier_pc_system " -fsanitize=${sanitizer}")
endforeach()
cmake_path(SET kvtier_pc_dir NORMALIZE "${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/pkgconfig")
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY "${kvtier_pc_dir}"
           OUTPUT_VARIABLE kvtier_pc_to_prefix)
configure_file("${PROJECT_SOURCE_DIR}/cmake/kvtier.pc.in" "${PROJECT_BINARY_DIR}/kvtier.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/kvtier.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

if(TARGET kvtier)
  install(TARGETS kvtier RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()
