# deploy/lib/commit.cmake - writes the header HEADER with MILLRACE_COMMIT: what git calls the commit of the folder
# SOURCE, with "-dirty" where files differ from it; "unknown" outside git. The file is left alone where nothing
# has changed.
# SPDX-License-Identifier: Apache-2.0
cmake_minimum_required(VERSION 3.22)
set(commit unknown)
if(EXISTS ${SOURCE}/.git)
  execute_process(COMMAND git --no-optional-locks -C ${SOURCE} describe --always --dirty --tags --abbrev=12
                  OUTPUT_VARIABLE found RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed AND found)
    set(commit ${found})
  endif()
endif()
file(CONFIGURE OUTPUT ${HEADER} CONTENT "#define MILLRACE_COMMIT \"@commit@\"\n" @ONLY)
