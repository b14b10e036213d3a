# deploy/lib/package.cmake - what `cmake --install` adds to the program, and packages of it: in a build folder,
# `cpack -G TGZ` or `cpack -G DEB`.
# SPDX-License-Identifier: Apache-2.0

# Documents keep the folders that their links name.
foreach(file README.md LICENSE CHANGELOG.md SECURITY.md ARCHITECTURE.md CONTRIBUTING.md
    coordinator/COMMANDS.md coordinator/OPTIONS.md coordinator/serving/api/FIELDS.md deploy/CLUSTER.md
    deploy/alerts.yml deploy/grafana.json deploy/millrace.service deploy/page.png deploy/demo/README.md
    deploy/predictors/README.md
    engine/NUMERICS.md tests/bench/RESULTS.md)
  get_filename_component(folder ${file} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${file} DESTINATION share/doc/millrace/${folder})
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/deploy/alerts.yml ${PROJECT_SOURCE_DIR}/deploy/grafana.json
  DESTINATION share/millrace)

set(CPACK_PACKAGE_VENDOR "Millrace")
set(CPACK_PACKAGE_CONTACT "The Millrace developers")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Distributed inference of GGUF language models")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS openmpi-bin) # mpirun
include(CPack)
