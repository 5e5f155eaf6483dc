# `cmake --install`: the library, include/heddle and a package for find_package(heddle).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS heddle EXPORT heddleTargets)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/heddle DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp")

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/heddle)
install(EXPORT heddleTargets NAMESPACE heddle:: DESTINATION ${package})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/heddleConfig.cmake.in ${PROJECT_BINARY_DIR}/heddleConfig.cmake
  INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/heddleConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/heddleConfig.cmake ${PROJECT_BINARY_DIR}/heddleConfigVersion.cmake DESTINATION ${package})
