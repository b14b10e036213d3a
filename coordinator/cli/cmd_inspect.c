/* cmd_inspect.c - `millrace inspect`: shows the metadata, the tensors and the layer sizes of a model file. */
// SPDX-License-Identifier: Apache-2.0
#include <inttypes.h>

#include "coordinator/cli/cmd.h"
#include "coordinator/cli/devices_text.h"
#include "coordinator/console/output_table.h"
#include "coordinator/session/output_json.h"
#include "coordinator/session/session.h"
#include "engine/base/mem.h"

/* A model file, and the sizes of its parts in bytes. */
typedef struct inspected {
    char *path;
    mr_gguf *gguf;
    int32_t n_layers; /* 1 + the highest layer number */
    int32_t n_nextn;  /* the last so many layers predict further tokens; 0 where the file is of no model that runs */
    size_t *layer_bytes;
    size_t indexer_bytes; /* of layers, and no part of layer_bytes */
    size_t embedding_bytes, output_bytes, encoder_bytes, shared_bytes, tensor_bytes;
} inspected;

static int32_t count_layers(const mr_gguf *g) {
    int32_t n = 0, layer;
    for (int32_t i = 0; i < mr_gguf_n_tensors(g); i++)
        if (mr_model_tensor_part(mr_gguf_tensor_at(g, i)->name, &layer) == MR_MODEL_LAYER && layer >= n)
            n = layer + 1;
    return n;
}

/* Adds up the sizes of all tensors. Each tensor counts once, so an output matrix that is tied to the embedding counts
 * as embedding only. */
static mr_status add_up(inspected *f, mr_err *err) {
    mr_model_info info = {0};
    mr_err ignored;
    f->n_layers = count_layers(f->gguf);
    if (mr_model_info_read(f->gguf, &info, &ignored) == MR_OK && f->n_layers > info.n_layers)
        f->n_nextn = f->n_layers - info.n_layers;
    f->layer_bytes = mr_alloc_array((size_t)f->n_layers, sizeof *f->layer_bytes);
    if (!f->layer_bytes)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for %" PRId32 " layers", f->n_layers);
    for (int32_t i = 0; i < mr_gguf_n_tensors(f->gguf); i++) {
        const mr_gguf_tensor *t = mr_gguf_tensor_at(f->gguf, i);
        int32_t layer = 0;
        f->tensor_bytes += t->bytes;
        switch (mr_model_tensor_part(t->name, &layer)) {
        case MR_MODEL_LAYER:
            if (layer < info.n_layers && mr_model_tensor_is_left_out(&info, t))
                f->indexer_bytes += t->bytes;
            else
                f->layer_bytes[layer] += t->bytes;
            break;
        case MR_MODEL_EMBEDDING:
            f->embedding_bytes += t->bytes;
            break;
        case MR_MODEL_OUTPUT:
            f->output_bytes += t->bytes;
            break;
        case MR_MODEL_ENCODER:
            f->encoder_bytes += t->bytes;
            break;
        default:
            f->shared_bytes += t->bytes;
        }
    }
    return MR_OK;
}

/* --- Text -------------------------------------------------------------------------------------------------------- */

static bool print_section(mr_text_buf *out, const char *name, int32_t n) {
    return mr_output_printf(out, "\n%s: %" PRId32 "\n", name, n);
}

static mr_status print_metadata(const inspected *f, mr_text_buf *out, mr_err *err) {
    char value[512];
    mr_output_table t = {.align = "lll"};
    for (int32_t i = 0; i < mr_gguf_n_keys(f->gguf); i++) {
        mr_gguf_key_format(f->gguf, i, value, sizeof value);
        mr_output_table_cell(&t, "%s", mr_gguf_key_name(f->gguf, i));
        mr_output_table_cell(&t, "%s", mr_gguf_type_name(mr_gguf_key_type(f->gguf, i)));
        mr_output_table_cell(&t, "%s", value);
    }
    t.failed |= !print_section(out, "metadata", mr_gguf_n_keys(f->gguf));
    mr_status status = mr_output_table_print(&t, out, err);
    mr_output_table_deinit(&t);
    return status;
}

static void shape_text(const mr_gguf_tensor *tensor, char *out, size_t size) {
    size_t used = 0;
    for (int32_t i = 0; i < tensor->n_dims && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%" PRId64, i ? " x " : "", tensor->ne[i]);
}

static mr_status print_tensors(const inspected *f, mr_text_buf *out, mr_err *err) {
    char shape[96];
    mr_output_table t = {.align = "lrlr"};
    for (int32_t i = 0; i < mr_gguf_n_tensors(f->gguf); i++) {
        const mr_gguf_tensor *tensor = mr_gguf_tensor_at(f->gguf, i);
        shape_text(tensor, shape, sizeof shape);
        mr_output_table_cell(&t, "%s", tensor->name);
        mr_output_table_cell(&t, "%s", shape);
        mr_output_table_cell(&t, "%s", mr_type_name((int32_t)tensor->type));
        mr_output_table_bytes_cell(&t, tensor->bytes);
    }
    t.failed |= !print_section(out, "tensors", mr_gguf_n_tensors(f->gguf));
    mr_status status = mr_output_table_print(&t, out, err);
    mr_output_table_deinit(&t);
    return status;
}

/* Without the gaps between the parts. */
static size_t file_bytes(const mr_gguf *g) {
    size_t bytes = 0;
    for (int32_t i = 0; i < mr_gguf_n_parts(g); i++)
        bytes += (size_t)mr_gguf_part_at(g, i)->bytes;
    return bytes;
}

static void add_part(mr_output_table *t, const char *name, size_t bytes) {
    mr_output_table_cell(t, "%s", name);
    mr_output_table_cell(t, "%zu", bytes);
    mr_output_table_bytes_cell(t, bytes);
}

static mr_status print_bytes(const inspected *f, mr_text_buf *out, mr_err *err) {
    char name[64];
    mr_output_table t = {.align = "lrr"};
    add_part(&t, "embedding", f->embedding_bytes);
    for (int32_t i = 0; i < f->n_layers; i++) {
        snprintf(name, sizeof name, "layer %" PRId32 "%s", i,
                 i < f->n_layers - f->n_nextn ? "" : ", left out: predicts further tokens");
        add_part(&t, name, f->layer_bytes[i]);
    }
    if (f->indexer_bytes)
        add_part(&t, "indexers, left out", f->indexer_bytes);
    add_part(&t, "output", f->output_bytes);
    if (f->encoder_bytes)
        add_part(&t, "encoders of pictures and sounds, left out", f->encoder_bytes);
    if (f->shared_bytes)
        add_part(&t, "others", f->shared_bytes);
    add_part(&t, "all tensors", f->tensor_bytes);
    for (int32_t i = 0; i < mr_gguf_n_parts(f->gguf) && mr_gguf_n_parts(f->gguf) > 1; i++) {
        snprintf(name, sizeof name, "part %" PRId32, i + 1);
        add_part(&t, name, (size_t)mr_gguf_part_at(f->gguf, i)->bytes);
    }
    add_part(&t, mr_gguf_n_parts(f->gguf) > 1 ? "all parts" : "file", file_bytes(f->gguf));
    t.failed |= !mr_output_printf(out, "\nbytes\n");
    mr_status status = mr_output_table_print(&t, out, err);
    mr_output_table_deinit(&t);
    return status;
}

/* The devices of this machine, and the matrices that stay on the CPU beside them. */
static mr_status print_devices(const inspected *f, mr_text_buf *out, mr_err *err) {
    bool ok = mr_output_printf(out, "\ndevices of this machine\n");
    for (const mr_backend_kind *const *k = mr_backend_kinds; *k && ok; k++) {
        char start[64];
        snprintf(start, sizeof start, "  %s: ", (*k)->name);
        ok = devices_text_add(out, *k, start);
        if (ok && devices_text_has(*k))
            ok = devices_text_add_left(out, *k, start, f->gguf);
        if (ok && !(*k)->create)
            ok = mr_output_printf(out, "%snot built in; hint: %s\n", start, (*k)->hint);
    }
    return ok ? MR_OK : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a text");
}

static mr_status print_text(const inspected *f, mr_err *err) {
    mr_text_buf out = {0};
    char bytes[OUTPUT_BYTES_TEXT], parts[32] = "";
    mr_output_bytes_text(file_bytes(f->gguf), bytes);
    if (mr_gguf_n_parts(f->gguf) > 1)
        snprintf(parts, sizeof parts, " in %" PRId32 " parts", mr_gguf_n_parts(f->gguf));
    mr_status status =
        mr_output_printf(&out, "%s: GGUF version %" PRIu32 ", %s%s%s\n", f->path, mr_gguf_version(f->gguf), bytes,
                         parts, mr_gguf_is_sparse(f->gguf) ? ", sparse (magic PWRI)" : "")
            ? MR_OK
            : mr_err_set(err, MR_E_NO_MEMORY, "no memory for a text");
    if (status == MR_OK)
        status = print_metadata(f, &out, err);
    if (status == MR_OK)
        status = print_tensors(f, &out, err);
    if (status == MR_OK)
        status = print_bytes(f, &out, err);
    if (status == MR_OK)
        status = print_devices(f, &out, err);
    if (status == MR_OK)
        status = mr_output_write(out.data, out.len, err);
    mr_text_buf_deinit(&out);
    return status;
}

/* --- JSON -------------------------------------------------------------------------------------------------------- */

/* A metadata value as JSON. Of an array, only the element type and the length. */
static json_t *value_json(const mr_gguf *g, int32_t idx) {
    const char *key = mr_gguf_key_name(g, idx);
    mr_gguf_array array;
    mr_str text;
    uint64_t u;
    int64_t i;
    float f;
    bool b;
    switch (mr_gguf_key_type(g, idx)) {
    case MR_GGUF_STRING:
        return mr_gguf_get_str(g, key, &text, NULL) == MR_OK ? mr_output_json_text(text) : NULL;
    case MR_GGUF_BOOL:
        return mr_gguf_get_bool(g, key, &b, NULL) == MR_OK ? json_boolean(b) : NULL;
    case MR_GGUF_F32:
    case MR_GGUF_F64:
        if (mr_gguf_get_f32(g, key, &f, NULL) != MR_OK)
            return NULL;
        /* JSON has no infinities. */
        return f - f == 0 ? json_real((double)f) : json_null();
    case MR_GGUF_ARRAY:
        if (mr_gguf_get_array(g, key, MR_GGUF_ELEMS_ANY, &array, NULL) != MR_OK)
            return NULL;
        return json_pack("{s:s, s:I}", "array_of", mr_gguf_type_name((int32_t)array.type), "length",
                         (json_int_t)array.n);
    case MR_GGUF_U64:
        /* A number of more than 63 bits becomes a real number. */
        if (mr_gguf_get_u64(g, key, &u, NULL) != MR_OK)
            return NULL;
        return u > INT64_MAX ? json_real((double)u) : json_integer((json_int_t)u);
    default:
        return mr_gguf_get_i64(g, key, &i, NULL) == MR_OK ? json_integer(i) : NULL;
    }
}

static json_t *metadata_json(const mr_gguf *g) {
    json_t *o = json_object();
    for (int32_t i = 0; i < mr_gguf_n_keys(g); i++) {
        json_t *name = mr_output_json_text(mr_str_from(mr_gguf_key_name(g, i)));
        bool ok = name && json_object_set_new(o, json_string_value(name), value_json(g, i)) == 0;
        json_decref(name);
        if (!ok)
            return json_decref(o), NULL;
    }
    return o;
}

static json_t *tensors_json(const mr_gguf *g) {
    json_t *all = json_array();
    for (int32_t i = 0; i < mr_gguf_n_tensors(g); i++) {
        const mr_gguf_tensor *t = mr_gguf_tensor_at(g, i);
        json_t *shape = json_array();
        for (int32_t d = 0; d < t->n_dims; d++)
            if (json_array_append_new(shape, json_integer(t->ne[d])) != 0)
                return json_decref(shape), json_decref(all), NULL;
        json_t *tensor = json_pack("{s:s, s:s, s:o, s:I, s:I}", "name", t->name, "type", mr_type_name((int32_t)t->type),
                                   "shape", shape, "offset", (json_int_t)t->offset, "bytes", (json_int_t)t->bytes);
        if (json_array_append_new(all, tensor) != 0)
            return json_decref(all), NULL;
    }
    return all;
}

/* The bytes of each part; a whole file is one part. */
static json_t *parts_json(const mr_gguf *g) {
    json_t *all = json_array();
    for (int32_t i = 0; i < mr_gguf_n_parts(g); i++)
        if (json_array_append_new(all, json_integer((json_int_t)mr_gguf_part_at(g, i)->bytes)) != 0)
            return json_decref(all), NULL;
    return all;
}

static mr_status print_json(const inspected *f, mr_err *err) {
    json_t *layers = json_array();
    for (int32_t i = 0; i < f->n_layers && layers; i++) {
        if (json_array_append_new(layers, json_integer((json_int_t)f->layer_bytes[i])) != 0) {
            json_decref(layers);
            layers = NULL;
        }
    }
    json_t *root = json_pack("{s:o, s:i, s:I, s:o, s:o, s:o, s:o, s:{s:I, s:o, s:i, s:I, s:I, s:I, s:I, s:I}}", "model",
                             mr_output_json_text(mr_str_from(f->path)), "version", (int)mr_gguf_version(f->gguf),
                             "file_bytes", (json_int_t)file_bytes(f->gguf), "parts", parts_json(f->gguf), "metadata",
                             metadata_json(f->gguf), "tensors", tensors_json(f->gguf), "devices", devices_json(),
                             "bytes", "embedding", (json_int_t)f->embedding_bytes, "layers", layers, "layers_left_out",
                             (int)f->n_nextn, "indexers_left_out", (json_int_t)f->indexer_bytes, "output",
                             (json_int_t)f->output_bytes, "encoders_left_out", (json_int_t)f->encoder_bytes, "others",
                             (json_int_t)f->shared_bytes, "tensors", (json_int_t)f->tensor_bytes);
    return mr_output_json_print(root, err);
}

mr_status cmd_inspect(const mr_options *options, mr_err *err) {
    inspected f = {0};
    mr_status status = mr_session_model_open(options, &f.path, &f.gguf, err);
    if (status == MR_OK)
        status = add_up(&f, err);
    if (status == MR_OK)
        status = mr_options_number(options, MR_OPTION_JSON) ? print_json(&f, err) : print_text(&f, err);
    mr_gguf_close(f.gguf);
    mr_free(f.layer_bytes);
    mr_free(f.path);
    return status;
}
