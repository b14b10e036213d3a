# Programs for AArch64 Linux, run by an emulator of its instructions. Static: they need no system of that kind to run.
# SPDX-License-Identifier: Apache-2.0
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
find_program(MILLRACE_AARCH64_CC aarch64-linux-gnu-gcc REQUIRED)
find_program(MILLRACE_AARCH64_QEMU NAMES qemu-aarch64-static qemu-aarch64 REQUIRED)
set(CMAKE_C_COMPILER ${MILLRACE_AARCH64_CC})
set(CMAKE_CROSSCOMPILING_EMULATOR ${MILLRACE_AARCH64_QEMU})
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
