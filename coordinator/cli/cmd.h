/* coordinator/cli/cmd.h - the commands of the program. Each command reads its options, runs, and returns a status.
 * main() prints the error and maps the status to the exit status:
 *   MR_OK 0, MR_E_INVALID 2 (wrong usage), MR_E_CANCELLED 130 or 143 (interrupted), all others 1.
 * An error with an empty text has been printed already, or needs no message.
 * Threads: bound to the main thread. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_CLI_CMD_H
#define MR_COORDINATOR_CLI_CMD_H

#include "coordinator/console/options.h"

MR_MUST_USE mr_status cmd_generate(const mr_options *options, mr_err *err);
MR_MUST_USE mr_status cmd_logits(const mr_options *options, mr_err *err);
MR_MUST_USE mr_status cmd_perplexity(const mr_options *options, mr_err *err);
MR_MUST_USE mr_status cmd_profile(const mr_options *options, mr_err *err);
MR_MUST_USE mr_status cmd_tokenize(const mr_options *options, mr_err *err);
MR_MUST_USE mr_status cmd_inspect(const mr_options *options, mr_err *err);
MR_MUST_USE mr_status cmd_plan(const mr_options *options, mr_err *err);
MR_MUST_USE mr_status cmd_bench(const mr_options *options, mr_err *err);
MR_MUST_USE mr_status cmd_batch(const mr_options *options, mr_err *err);
MR_MUST_USE mr_status cmd_chat(const mr_options *options, mr_err *err);
MR_MUST_USE mr_status cmd_serve(const mr_options *options, mr_err *err);
/* The command simulate, and bench with --load or --load-trace. */
MR_MUST_USE mr_status cmd_load(const mr_options *options, mr_err *err);

#endif
