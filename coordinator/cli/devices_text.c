/* devices_text.c - the devices of this machine in words and as JSON, for --version, `inspect` and `plan`. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/devices_text.h"

#include <inttypes.h>

#include "coordinator/console/output.h"
#include "coordinator/session/output_json.h"
#include "engine/gguf/model_info.h"

enum { MOST_DEVICES = 64 }; /* that are listed */

/* Describes device i of a kind. *out_why: why there is none. */
static bool find_device(const mr_backend_kind *kind, int32_t i, mr_device_about *out, mr_err *out_why) {
    *out_why = (mr_err){0};
    return kind->about_device && i < MOST_DEVICES && kind->about_device(i, out, out_why) == MR_OK;
}

bool devices_text_has(const mr_backend_kind *kind) {
    mr_device_about d;
    mr_err why;
    bool has = false;
    for (int32_t i = 0; !has && find_device(kind, i, &d, &why); i++)
        has = d.problem.status == MR_OK;
    return has;
}

/* --- Text -------------------------------------------------------------------------------------------------------- */

static bool add_device(mr_text_buf *out, const char *start, int32_t i, const mr_device_about *d) {
    char memory[OUTPUT_BYTES_TEXT];
    bool is_used = d->problem.status == MR_OK;
    mr_output_bytes_text(d->memory_bytes, memory);
    return mr_output_printf(out, "%sdevice %" PRId32 ": %s, %s, %s of memory, %s%s%s\n", start, i, d->name,
                            d->capability, memory, d->driver,
                            is_used ? "" : "; not used: ", is_used ? "" : d->problem.text);
}

bool devices_text_add(mr_text_buf *out, const mr_backend_kind *kind, const char *start) {
    mr_device_about d;
    mr_err why;
    int32_t n = 0;
    bool ok = true;
    for (; ok && find_device(kind, n, &d, &why); n++)
        ok = add_device(out, start, n, &d);
    if (ok && n == 0 && kind->about_device)
        ok = mr_output_printf(out, "%sno device is used: %s\n", start, why.text);
    return ok;
}

/* --- Matrices that stay on the CPU ------------------------------------------------------------------------------- */

/* The matrices of one type. */
typedef struct left {
    int32_t n;
    size_t bytes;
    const char *first; /* the name of the first one */
} left;

/* Adds up, for each type, the matrices that devices of the kind cannot multiply. */
static void find_left(const mr_backend_kind *kind, const mr_gguf *g, left out[MR_TYPE_FILE_COUNT]) {
    mr_model_info info = {0};
    mr_err ignored;
    bool is_model = mr_model_info_read(g, &info, &ignored) == MR_OK;
    for (int t = 0; t < MR_TYPE_FILE_COUNT; t++)
        out[t] = (left){0};
    for (int32_t i = 0; i < mr_gguf_n_tensors(g) && kind->multiplies; i++) {
        const mr_gguf_tensor *t = mr_gguf_tensor_at(g, i);
        bool is_matrix = t->n_dims > 1 && t->type < MR_TYPE_FILE_COUNT && t->ne[0] <= INT32_MAX;
        if (!is_matrix || (is_model && mr_model_tensor_is_left_out(&info, t)) ||
            kind->multiplies(t->type, (int32_t)t->ne[0]))
            continue;
        left *l = &out[t->type];
        l->first = l->n++ == 0 ? t->name : l->first;
        l->bytes += t->bytes;
    }
}

bool devices_text_add_left(mr_text_buf *out, const mr_backend_kind *kind, const char *start, const mr_gguf *g) {
    left all[MR_TYPE_FILE_COUNT];
    bool ok = true;
    find_left(kind, g, all);
    for (int t = 0; t < MR_TYPE_FILE_COUNT && ok; t++) {
        char bytes[OUTPUT_BYTES_TEXT];
        mr_output_bytes_text(all[t].bytes, bytes);
        if (all[t].n > 0)
            ok = mr_output_printf(out,
                                  "%s%" PRId32 " %s of type %s (%s, from %s on) %s on the CPU: devices of the backend "
                                  "'%s' have no kernel for this type\n",
                                  start, all[t].n, all[t].n == 1 ? "matrix" : "matrices", mr_type_name((mr_type)t),
                                  bytes, all[t].first, all[t].n == 1 ? "stays" : "stay", kind->name);
    }
    return ok;
}

/* --- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *text_json(const char *text) {
    return mr_output_json_text(mr_str_from(text));
}

static json_t *device_json(const mr_backend_kind *kind, int32_t i, const mr_device_about *d) {
    json_t *o =
        json_pack("{s:s, s:i, s:o, s:s, s:s, s:I}", "backend", kind->name, "device", i, "name", text_json(d->name),
                  "capability", d->capability, "driver", d->driver, "memory_bytes", (json_int_t)d->memory_bytes);
    if (o && d->problem.status != MR_OK && json_object_set_new(o, "problem", text_json(d->problem.text)) != 0)
        return json_decref(o), NULL;
    return o;
}

json_t *devices_json(void) {
    json_t *all = json_array();
    for (const mr_backend_kind *const *kind = mr_backend_kinds; *kind && all; kind++) {
        mr_device_about d;
        mr_err why;
        int32_t n = 0;
        bool ok = true;
        for (; ok && find_device(*kind, n, &d, &why); n++)
            ok = json_array_append_new(all, device_json(*kind, n, &d)) == 0;
        if (ok && n == 0 && (*kind)->about_device)
            ok = json_array_append_new(
                     all, json_pack("{s:s, s:o}", "backend", (*kind)->name, "problem", text_json(why.text))) == 0;
        if (!ok)
            return json_decref(all), NULL;
    }
    return all;
}

json_t *devices_json_left(const mr_backend_kind *kind, const mr_gguf *g) {
    left all[MR_TYPE_FILE_COUNT];
    json_t *list = json_array();
    find_left(kind, g, all);
    for (int t = 0; t < MR_TYPE_FILE_COUNT && list; t++) {
        if (all[t].n > 0 && json_array_append_new(list, json_pack("{s:s, s:s, s:i, s:I}", "backend", kind->name, "type",
                                                                  mr_type_name((mr_type)t), "tensors", (int)all[t].n,
                                                                  "bytes", (json_int_t)all[t].bytes)) != 0)
            return json_decref(list), NULL;
    }
    return list;
}
