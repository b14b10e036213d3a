/* coordinator/serving/schema/json_rules.h - the GBNF rules of JSON values of any kind.
 * Threads: pure functions. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_SCHEMA_JSON_RULES_H
#define MR_COORDINATOR_SERVING_SCHEMA_JSON_RULES_H

#include "engine/base/status.h"
#include "engine/text/buffers.h"

/* Appends the rules PREFIXvalue, PREFIXobject, PREFIXarray, PREFIXstring, PREFIXchar, PREFIXplain, PREFIXescape,
 * PREFIXnumber, PREFIXinteger, PREFIXws (white space between parts: nothing, a space, or a newline with at most 32
 * spaces or 8 tabs) and PREFIXsp (nothing or a space). The rules of values have no white space at their ends.
 * Error: MR_E_NO_MEMORY. */
MR_MUST_USE mr_status json_rules_write(const char *prefix, mr_text_buf *out, mr_err *err);

#endif
