/* The limits in files of control groups. The test writes the files to a temporary folder. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/cgroup.h"
#include "engine/base/mem.h"
#include "tests/support/test.h"

static char root[64];

static void make_root(void) {
    strcpy(root, "/tmp/mr_test_cgroup_XXXXXX");
    assert_non_null(mkdtemp(root));
}

static void remove_root(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", root);
    assert_int_equal(system(command), 0);
}

/* Writes text to root/path, with the folders on the way. */
static void put(const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = 0;
        mkdir(full, 0700);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static double quota(const char *groups) {
    char file[512];
    put("self", groups);
    snprintf(file, sizeof file, "%s/self", root);
    return cgroup_cpu_quota(file, root);
}

static void test_quota_of_control_groups(void **state) {
    (void)state;
    make_root();
    assert_true(quota("0::/\n") == 0);
    put("a/b/cpu.max", "max 100000\n");
    assert_true(quota("0::/a/b\n") == 0);
    put("a/b/cpu.max", "250000 100000\n");
    assert_true(quota("0::/a/b\n") == 2.5);
    assert_true(quota("0::/a\n") == 0);
    put("a/cpu.max", "150000 100000\n");
    assert_true(quota("0::/a/b\n") == 1.5);
    put("cpu.max", "50000 100000\n");
    assert_true(quota("0::/a/b\n") == 0.5);
    assert_true(quota("0::/not/there\n") == 0.5);
    put("cpu.max", "garbage");
    put("cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
    put("cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    const char *v1 = "5:memory:/m\n4:cpu,cpuacct:/job/step\n3:cpuset:/x\n0::/\n";
    assert_true(quota(v1) == 0);
    put("cpu,cpuacct/job/cpu.cfs_quota_us", "300000\n");
    assert_true(quota(v1) == 3.0);
    put("cpu,cpuacct/job/cpu.cfs_period_us", "0\n");
    assert_true(quota(v1) == 0);
    assert_true(quota("") == 0 && quota("::\n:\nno colons") == 0);
    assert_true(cgroup_cpu_quota("/nowhere", root) == 0);
    remove_root();
}

static uint64_t memory(const char *groups) {
    char file[512];
    put("self", groups);
    snprintf(file, sizeof file, "%s/self", root);
    return cgroup_memory_left(file, root);
}

static void test_memory_of_control_groups(void **state) {
    (void)state;
    make_root();
    assert_true(memory("0::/\n") == UINT64_MAX);
    put("a/b/memory.max", "max\n");
    put("a/b/memory.current", "5000\n");
    assert_true(memory("0::/a/b\n") == UINT64_MAX);
    put("a/b/memory.max", "8000\n");
    assert_true(memory("0::/a/b\n") == 3000);
    put("a/b/memory.stat", "anon 1\nkernel_inactive_file 77\ninactive_file 1000\nactive_file 500\n");
    assert_true(memory("0::/a/b\n") == 4500);
    /* Larger than the usage, because the kernel's files are not read at the same moment. */
    put("a/b/memory.stat", "inactive_file 10000\n");
    assert_true(memory("0::/a/b\n") == 8000);
    put("a/memory.max", "4000\n");
    put("a/memory.current", "4001\n");
    assert_true(memory("0::/a/b\n") == 0);
    assert_true(memory("0::/a\n") == 0 && memory("0::/c\n") == UINT64_MAX);
    const char *v1 = "5:memory:/m\n4:cpu,cpuacct:/job/step\n0::/\n";
    put("memory/m/memory.limit_in_bytes", "9000\n");
    assert_true(memory(v1) == UINT64_MAX);
    put("memory/m/memory.usage_in_bytes", "8000\n");
    put("memory/m/memory.stat", "inactive_file 7\ntotal_inactive_file 20\ntotal_active_file 3\n");
    assert_true(memory(v1) == 1023);
    put("memory/memory.limit_in_bytes", "nonsense");
    put("memory/memory.usage_in_bytes", "1\n");
    assert_true(memory(v1) == 1023);
    remove_root();
}

static void test_memory_of_this_machine(void **state) {
    (void)state;
    uint64_t bytes = mr_mem_available();
    assert_true(bytes > 1 << 20 && bytes < UINT64_C(1) << 50);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quota_of_control_groups),
        cmocka_unit_test(test_memory_of_control_groups),
        cmocka_unit_test(test_memory_of_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
