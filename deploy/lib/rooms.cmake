# deploy/lib/rooms.cmake - how every C file of the project is compiled, and what a room is; for the program and for
# builds of a part of it (tests/kernels/aarch64).
# SPDX-License-Identifier: Apache-2.0

# Every C file is compiled with these. -ffp-contract=off is part of the numerics contract (engine/NUMERICS.md):
# the compiler may fuse no multiplication and addition on its own.
get_filename_component(MILLRACE_ROOT ${CMAKE_CURRENT_LIST_DIR}/../.. ABSOLUTE)
add_library(mr_flags INTERFACE)
target_compile_options(mr_flags INTERFACE -Wall -Wextra -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes -Werror
                       -ffp-contract=off -fno-strict-aliasing -fvisibility=hidden)
target_compile_definitions(mr_flags INTERFACE _GNU_SOURCE MILLRACE_VERSION="${PROJECT_VERSION}")
target_include_directories(mr_flags INTERFACE ${MILLRACE_ROOT} ${PROJECT_BINARY_DIR})
if(MILLRACE_SANITIZE)
  target_compile_options(mr_flags INTERFACE -fsanitize=${MILLRACE_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all)
  target_link_options(mr_flags INTERFACE -fsanitize=${MILLRACE_SANITIZE})
endif()

# A room of the project: a static library whose link list is exactly its allowed neighbours.
function(mr_room NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;NEIGHBOURS" ${ARGN})
  add_library(${NAME} STATIC ${ARG_SOURCES})
  target_link_libraries(${NAME} PRIVATE mr_flags PUBLIC ${ARG_NEIGHBOURS})
endfunction()
