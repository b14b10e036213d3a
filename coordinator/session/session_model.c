/* coordinator/session/session_model.c - finds and opens the model that the command line names. */
// SPDX-License-Identifier: Apache-2.0
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/session/session.h"
#include "engine/base/mem.h"

#define DEMO_NAME "millrace-demo.gguf"

/* Where the demo model may be, relative to the folder of the program: installed, or in a build tree. */
static const char *const DEMO_PLACES[] = {"../share/millrace/" DEMO_NAME, DEMO_NAME};

static mr_status find_demo(char **out_path, mr_err *err) {
    char folder[PATH_MAX], path[PATH_MAX + 64];
    ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
    if (n < 0)
        return mr_err_set(err, MR_E_NOT_FOUND, "the demo model cannot be found: /proc/self/exe cannot be read");
    folder[n] = 0;
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = 0;
    for (size_t i = 0; i < sizeof DEMO_PLACES / sizeof DEMO_PLACES[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, DEMO_PLACES[i]);
        if (access(path, F_OK) != 0)
            continue;
        *out_path = mr_strdup(path);
        return *out_path ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a path");
    }
    return mr_err_set(err, MR_E_NOT_FOUND,
                      "the demo model is neither %s nor %s, seen from %.200s; hint: give the path of a .gguf file",
                      DEMO_PLACES[0], DEMO_PLACES[1], folder);
}

static bool is_demo(const mr_options *o) {
    return mr_options_number(o, MR_OPTION_DEMO) != 0;
}

const char *mr_session_text_argument(const mr_options *o) {
    int32_t idx = is_demo(o) ? 0 : 1;
    return idx < o->n_arguments ? o->arguments[idx] : NULL;
}

mr_status mr_session_model_path(const mr_options *o, char **out_path, mr_err *err) {
    if (is_demo(o))
        return find_demo(out_path, err);
    if (o->n_arguments == 0)
        return mr_err_set(err, MR_E_INVALID, "%s needs a model; hint: give the path of a .gguf file, or --demo",
                          mr_command_spec_of(o->command)->name);
    *out_path = mr_strdup(o->arguments[0]);
    return *out_path ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a path");
}

mr_status mr_session_model_open(const mr_options *o, char **out_path, mr_gguf **out_gguf, mr_err *err) {
    int32_t n_allowed = (is_demo(o) ? 0 : 1) + (o->command == MR_COMMAND_TOKENIZE ? 1 : 0);
    if (o->n_arguments > n_allowed)
        return mr_err_set(err, MR_E_INVALID, "\"%.80s\" is one argument too many for %s%s", o->arguments[n_allowed],
                          mr_command_spec_of(o->command)->name,
                          is_demo(o) ? "; hint: --demo stands in the place of MODEL" : "");
    mr_status status = mr_session_model_path(o, out_path, err);
    return status == MR_OK ? mr_gguf_open(*out_path, out_gguf, err) : status;
}
