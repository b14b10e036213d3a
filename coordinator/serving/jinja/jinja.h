/* coordinator/serving/jinja/jinja.h - the part of Jinja2 that chat templates use, with Python's meaning of every value.
 * A template is parsed once and rendered any number of times. White space is handled as with trim_blocks and
 * lstrip_blocks. The extensions are loopcontrols and `generation`. tojson, raise_exception and strftime_now work as the
 * transformers library defines them.
 * Source:  https://jinja.palletsprojects.com/en/stable/templates (3.1), and the Python language reference for values.
 *          Lists and dicts may be changed by their methods, as in jinja2's SandboxedEnvironment.
 * Differs: integers have 64 bits (an overflow is an error): a longer one of the variables can be written and compared.
 *          Strings are UTF-8. The statements include, import, extends, block and do are missing.
 * Owns:    a template owns its copy of the source. Borrows: variables, while it renders.
 * Threads: a template is constant: any number of threads may render one template at once. Several renders may share
 *          variables if no thread writes to them.
 * Errors:  MR_E_FORMAT: the template is malformed. MR_E_INVALID: rendering failed where Python would raise an
 *          exception. A call of raise_exception also ends so, with its text after "the template says: ".
 *          MR_E_TOO_LONG: a limit was reached. The text begins with "template line N: ". */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_JINJA_JINJA_H
#define MR_COORDINATOR_SERVING_JINJA_JINJA_H

#include <jansson.h>
#include <stdint.h>

#include "engine/base/str.h"
#include "engine/text/buffers.h"

typedef struct mr_jinja mr_jinja;

enum {
    MR_JINJA_MAX_SOURCE_BYTES = 1 << 20,
    MR_JINJA_MAX_DEPTH = 1000, /* nested nodes during a render; 1000 of them take 0.5 MiB of stack */
};

/* What one render may use. A field of 0 takes the default, which stands beside the field. */
typedef struct mr_jinja_limits {
    uint64_t max_steps;      /* 1 for each node and for 8 bytes or items read: 20 million, one or two seconds */
    size_t max_output_bytes; /* 16 MiB */
    size_t max_memory_bytes; /* values and text together: 64 MiB */
    int32_t max_depth;       /* MR_JINJA_MAX_DEPTH, which is also the upper bound */
} mr_jinja_limits;

/* The source must be UTF-8. MR_E_TOO_LONG: larger than the limit, or nested too deeply. */
MR_MUST_USE mr_status mr_jinja_parse(mr_str source, mr_jinja **out, mr_err *err);
void mr_jinja_destroy(mr_jinja *template);
/* Appends the text to out. On failure out is unchanged. variables: an object, or NULL for none. limits may be NULL.
 * now_unix_s: the time that strftime_now prints, in local time. */
MR_MUST_USE mr_status mr_jinja_render(const mr_jinja *template, const json_t *variables, const mr_jinja_limits *limits,
                                      int64_t now_unix_s, mr_text_buf *out, mr_err *err);

#endif
