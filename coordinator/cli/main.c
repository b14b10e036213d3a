/* coordinator/cli/main.c - the program: parses the options, runs one command, and returns the exit status. Ranks other
 * than rank 0 follow rank 0 in place of running the command. */
// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "backends/cpu/kernels.h"
#include "backends/registry.h"
#include "coordinator/cli/cmd.h"
#include "coordinator/cli/devices_text.h"
#include "coordinator/cli/status_file.h"
#include "coordinator/console/interrupt.h"
#include "coordinator/console/options.h"
#include "coordinator/console/output.h"
#include "coordinator/session/session.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/graph/debug.h"
#include "millrace_commit.h"

/* EXIT_START_AGAIN: with --recover, a rank was lost before a plan ran. The number is EX_TEMPFAIL of BSD. */
enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_START_AGAIN = 75 };

enum { LEAST_STACK_BYTES = 512 << 10 };

typedef mr_status cmd_fn(const mr_options *options, mr_err *err);

static cmd_fn *const COMMANDS[MR_COMMAND_COUNT] = {
    [MR_COMMAND_GENERATE] = cmd_generate,     [MR_COMMAND_LOGITS] = cmd_logits,   [MR_COMMAND_TOKENIZE] = cmd_tokenize,
    [MR_COMMAND_INSPECT] = cmd_inspect,       [MR_COMMAND_PLAN] = cmd_plan,       [MR_COMMAND_BENCH] = cmd_bench,
    [MR_COMMAND_PERPLEXITY] = cmd_perplexity, [MR_COMMAND_PROFILE] = cmd_profile, [MR_COMMAND_SIMULATE] = cmd_load,
    [MR_COMMAND_SERVE] = cmd_serve,           [MR_COMMAND_CHAT] = cmd_chat,       [MR_COMMAND_BATCH] = cmd_batch,
};

/* Opens /dev/null in place of closed standard streams, so that no other file gets their descriptors. /dev/null is
 * opened in the wrong direction, so that using such a stream is still an error. */
static void fill_standard_streams(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            return;
}

/* Checks the environment variables that are not options, and the limit of stacks, which is that of new threads, too. */
static mr_status check_environment(mr_err *err) {
    char levels[64];
    size_t used = 0;
    const char *wrong = mr_isa_env_error();
    struct rlimit stack;
    if (getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur < LEAST_STACK_BYTES)
        return mr_err_set(err, MR_E_NO_MEMORY, "a stack may have %d KiB here, and needs %d; hint: ulimit -s 8192",
                          (int)(stack.rlim_cur / 1024), LEAST_STACK_BYTES / 1024);
    if (!wrong)
        return mr_graph_variables_check(err);
    for (int i = 0; i < MR_ISA_COUNT; i++)
        used += (size_t)snprintf(levels + used, sizeof levels - used, "%s%s", i ? ", " : "", mr_isa_name((mr_isa)i));
    return mr_err_set(err, MR_E_INVALID, "MILLRACE_CPU_ISA: \"%.80s\" is not one of %s", wrong, levels);
}

static void warn_of_variables(const mr_options *o) {
    size_t pos = 0;
    mr_err warning;
    while (mr_options_next_warning(o, environ, &pos, &warning))
        mr_output_warning("%s", warning.text);
}

static void configure_log(const mr_options *o) {
    mr_log_level level = MR_LOG_INFO;
    if (mr_log_level_parse(mr_options_text(o, MR_OPTION_LOG_LEVEL), &level))
        mr_log_set_level(level);
    mr_output_set_log_json(mr_options_number(o, MR_OPTION_LOG_JSON) != 0);
}

static void print_version(FILE *f) {
    char library[128];
    mr_rank_mpi_library(library, sizeof library);
    fprintf(f, "millrace %s\ncommit: %s\nMPI: %s\n", MILLRACE_VERSION, MILLRACE_COMMIT, library);
    fprintf(f, "instruction sets: %s", mr_isa_name(MR_ISA_SCALAR));
    for (int i = MR_ISA_SCALAR + 1; i < MR_ISA_COUNT; i++)
        if (mr_isa_is_here((mr_isa)i))
            fprintf(f, ", %s", mr_isa_name((mr_isa)i));
    fputc('\n', f);
    for (const mr_backend_kind *const *k = mr_backend_kinds; *k; k++) {
        mr_text_buf devices = {0};
        fprintf(f, "backend %s: %s%s\n", (*k)->name, (*k)->about, (*k)->create ? "" : " (not built in)");
        if (devices_text_add(&devices, *k, "  ") && devices.len > 0)
            fwrite(devices.data, 1, devices.len, f);
        mr_text_buf_deinit(&devices);
    }
}

/* Prints the text of --version, --options or --help with one write. */
static mr_status print_text(const mr_options *o, mr_err *err) {
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    if (!f)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for a help text");
    if (o->version)
        print_version(f);
    else if (o->markdown)
        mr_options_document(f);
    else if (o->command == MR_COMMAND_COUNT)
        mr_options_help(f);
    else
        mr_options_command_help(f, o->command);
    mr_status status =
        fclose(f) == 0 ? mr_output_write(text, len, err) : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a help text");
    free(text);
    return status;
}

static mr_status run(const mr_options *o, mr_err *err) {
    if (o->version || o->markdown || mr_options_number(o, MR_OPTION_HELP))
        return print_text(o, err);
    configure_log(o);
    warn_of_variables(o);
    mr_status status = check_environment(err);
    return status == MR_OK ? COMMANDS[o->command](o, err) : status;
}

static int exit_status(mr_status status) {
    switch (status) {
    case MR_OK:
        return 0;
    case MR_E_INVALID:
        return EXIT_USAGE;
    case MR_E_CANCELLED:
        return mr_interrupt_exit_status();
    default:
        return EXIT_FAILED;
    }
}

static bool runs_on_ranks(const mr_options *o) {
    if (o->version || o->markdown || mr_options_number(o, MR_OPTION_HELP))
        return false;
    return o->command == MR_COMMAND_GENERATE ||
           (o->command == MR_COMMAND_PLAN && !mr_options_given(o, MR_OPTION_FACTS)) ||
           o->command == MR_COMMAND_LOGITS || o->command == MR_COMMAND_PERPLEXITY || o->command == MR_COMMAND_PROFILE ||
           o->command == MR_COMMAND_BENCH || o->command == MR_COMMAND_SERVE || o->command == MR_COMMAND_CHAT ||
           o->command == MR_COMMAND_BATCH;
}

/* Runs a rank other than rank 0: it follows rank 0, or ends at once if the command runs on rank 0 alone. status and
 * problem: the result of parsing the options. Rank 0 usually refuses the same command line and prints the error;
 * otherwise rank 0 is told of the problem. */
static int follow(const mr_options *o, mr_status status, mr_err *problem) {
    char *path = NULL;
    if (status == MR_OK && !runs_on_ranks(o))
        return 0;
    if (status == MR_OK) {
        configure_log(o);
        mr_mem_set_budget((size_t)mr_options_number(o, MR_OPTION_MEM));
        status = check_environment(problem);
        if (status == MR_OK)
            status = mr_session_model_path(o, &path, problem);
    }
    mr_rank_config config = mr_session_cluster_rank_config(o, path);
    config.problem = status == MR_OK ? NULL : problem;
    int code = mr_rank_follow(&config);
    mr_free(path);
    return code;
}

/* Whether an error may be a consequence of a lost rank. If the loss was reported, such an error is not printed. */
static bool is_of_peers(mr_status status) {
    return status == MR_E_PEER_LOST || status == MR_E_TIMEOUT || status == MR_E_PROTOCOL;
}

int main(int argc, char **argv) {
    mr_options options;
    mr_err err = {0};
    fill_standard_streams();
    mr_interrupt_ignore_strays();
    const mr_rank_place place = mr_rank_place_get();
    const bool is_first = place.rank == 0;
    if (place.n_ranks > 1)
        mr_rank_prepare();
    if (is_first)
        status_file_begin();
    mr_status status = mr_options_parse(argc, argv, environ, &options, &err);
    mr_devices_config devices;
    if (status == MR_OK && mr_session_cluster_devices(&options, &devices, &err) == MR_OK)
        mr_devices_prepare(&devices);
    if (!is_first) {
        int code = follow(&options, status, &err);
        mr_options_deinit(&options);
        if (mr_rank_left_behind())
            _exit(code);
        return code;
    }
    bool readable = status == MR_OK;
    if (readable)
        status = run(&options, &err);
    if (status == MR_E_CANCELLED && mr_rank_loss_reported())
        status = MR_E_PEER_LOST;
    if (status != MR_OK && !(mr_rank_loss_reported() && is_of_peers(status)))
        mr_output_error(&err);
    if (status != MR_OK && (!readable || runs_on_ranks(&options)))
        mr_session_cluster_dismiss_unmet();
    bool begins_again = readable && mr_options_number(&options, MR_OPTION_RECOVER) && mr_rank_loss_reported();
    int code = begins_again && is_of_peers(status) ? EXIT_START_AGAIN : exit_status(status);
    mr_options_deinit(&options);
    status_file_end(code);
    if (mr_rank_left_behind())
        _exit(code);
    return code;
}
