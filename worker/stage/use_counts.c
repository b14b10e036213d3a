/* worker/stage/use_counts.c - reads what the layers of a step have chosen, and counts it. Counts are sums of integers,
 * so they do not depend on the order of the rows, nor on the steps or stages that computed them. */
// SPDX-License-Identifier: Apache-2.0
#include "worker/stage/use_counts.h"

#include "engine/base/mem.h"

struct use_counts {
    mr_layer_range range;
    int32_t max_buckets;
    mr_layer_choice *choices; /* [max_buckets][layers of the range] */
    mr_use_counts *layers;    /* [n_layers] */
    int32_t n_layers;
    uint64_t *counts; /* of all layers, one behind the other */
    uint8_t *copy;    /* of the choices of one layer that lie on a device; NULL: the host reads all in place */
    size_t copy_bytes;
};

static int32_t n_of_range(const use_counts *u) {
    return u->range.last - u->range.first;
}

mr_status use_counts_create(mr_layer_range range, int32_t max_buckets, use_counts **out, mr_err *err) {
    size_t n = (size_t)(range.last - range.first);
    use_counts *u = mr_alloc(sizeof *u);
    if (u) {
        *u = (use_counts){.range = range, .max_buckets = max_buckets};
        u->choices = mr_alloc_array((size_t)max_buckets * n, sizeof *u->choices);
        u->layers = mr_alloc_array(n, sizeof *u->layers);
    }
    if (!u || !u->choices || !u->layers) {
        use_counts_destroy(u);
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to count the uses in %zu layers", n);
    }
    *out = u;
    return MR_OK;
}

void use_counts_destroy(use_counts *u) {
    if (!u)
        return;
    mr_free(u->choices);
    mr_free(u->layers);
    mr_free(u->counts);
    mr_free(u->copy);
    mr_free(u);
}

mr_layer_choice *use_counts_choices(use_counts *u, int32_t bucket) {
    MR_ASSERT(!u || (bucket >= 0 && bucket < u->max_buckets));
    return u ? u->choices + (size_t)bucket * (size_t)n_of_range(u) : NULL;
}

/* How many counts all layers have. The choices of all buckets have the same numbers. */
static size_t n_counts(const use_counts *u) {
    size_t n = 0;
    for (int32_t l = 0; l < n_of_range(u); l++)
        n += (size_t)u->choices[l].n;
    return n;
}

size_t use_counts_bytes(const use_counts *u) {
    return u ? n_counts(u) * sizeof *u->counts : 0;
}

/* Bytes of an output that the host cannot read in place; 0: it can, or there is none. */
static size_t bytes_to_copy(const mr_graph *graph, int32_t tensor) {
    bool is_there = tensor == MR_NO_TENSOR || mr_graph_on_host(graph, tensor) != MR_NO_TENSOR;
    return is_there ? 0 : mr_graph_tensor(graph, tensor)->bytes;
}

void use_counts_note(use_counts *u, int32_t bucket, const mr_graph *graph) {
    const mr_layer_choice *choices = use_counts_choices(u, bucket);
    for (int32_t l = 0; choices && l < n_of_range(u); l++) {
        size_t bytes = choices[l].n > 0 ? bytes_to_copy(graph, choices[l].tensor) : 0;
        size_t cold = choices[l].n > 0 ? bytes_to_copy(graph, choices[l].cold) : 0;
        bytes = cold > bytes ? cold : bytes;
        u->copy_bytes = bytes > u->copy_bytes ? bytes : u->copy_bytes;
    }
}

mr_status use_counts_allocate(use_counts *u, int32_t bucket, mr_err *err) {
    const mr_layer_choice *choices = use_counts_choices(u, bucket);
    size_t n = n_counts(u), at = 0;
    u->counts = n > 0 ? mr_alloc_array(n, sizeof *u->counts) : NULL;
    u->copy = u->copy_bytes > 0 ? mr_alloc(u->copy_bytes) : NULL;
    if ((n > 0 && !u->counts) || (u->copy_bytes > 0 && !u->copy))
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory to count the uses of %zu experts or neurons", n);
    for (int32_t l = 0; l < n_of_range(u); l++) {
        if (choices[l].n == 0)
            continue;
        u->layers[u->n_layers++] = (mr_use_counts){.layer = u->range.first + l,
                                                   .is_neurons = choices[l].is_neurons,
                                                   .n = choices[l].n,
                                                   .counts = u->counts + at};
        at += (size_t)choices[l].n;
    }
    return MR_OK;
}

static mr_status count_experts(mr_use_counts *layer, const mr_layer_choice *choice, const uint8_t *rows,
                               size_t row_bytes, int32_t n_rows, mr_err *err) {
    for (int32_t r = 0; r < n_rows; r++) {
        const int32_t *experts = (const int32_t *)(const void *)(rows + (size_t)r * row_bytes);
        for (int32_t i = 0; i < choice->n_used; i++) {
            if (experts[i] < 0 || experts[i] >= choice->n)
                return mr_err_set(err, MR_E_DEVICE, "layer %d: a row was sent to expert %d of %d", layer->layer,
                                  experts[i], choice->n);
            layer->counts[experts[i]]++;
        }
    }
    return MR_OK;
}

/* Counts the uses of n neurons. Visits the set bits alone: a small part of the neurons is active. Leaves out bits
 * behind the last neuron. */
static void count_neurons(uint64_t *counts, int32_t n, void *data, int32_t n_rows) {
    int32_t n_words = mr_count_partitions(n) * MR_PARTITION_WORDS, n_used = (n + 31) / 32;
    const uint32_t *sets = mr_active_at(data, n).sets;
    for (int32_t r = 0; r < n_rows; r++, sets += n_words)
        for (int32_t i = 0; i < n_used; i++) {
            uint32_t valid = i < n / 32 ? UINT32_MAX : (1u << n % 32) - 1;
            for (uint32_t rest = sets[i] & valid; rest != 0; rest &= rest - 1)
                counts[32 * i + __builtin_ctz(rest)]++;
        }
}

/* A choice in memory that the host reads, until the next call; NULL with an error. */
static uint8_t *read_choice(const use_counts *u, mr_graph *graph, int32_t tensor, int32_t n_rows, mr_err *err) {
    int32_t on_host = mr_graph_on_host(graph, tensor);
    const mr_tensor *t = mr_graph_tensor(graph, on_host != MR_NO_TENSOR ? on_host : tensor);
    int32_t n = t->row_count == MR_ROWS_FIXED ? t->ne[1] : n_rows;
    if (on_host != MR_NO_TENSOR)
        return t->buffer->base + t->offset;
    return mr_graph_get_rows(graph, tensor, 0, n, u->copy, t->row_bytes, err) == MR_OK ? u->copy : NULL;
}

mr_status use_counts_add(use_counts *u, int32_t bucket, mr_graph *graph, int32_t n_rows, mr_err *err) {
    const mr_layer_choice *choices = use_counts_choices(u, bucket);
    mr_err text = {0};
    mr_status status = MR_OK;
    for (int32_t i = 0; i < u->n_layers && status == MR_OK; i++) {
        mr_use_counts *layer = &u->layers[i];
        const mr_layer_choice *choice = &choices[layer->layer - u->range.first];
        uint8_t *data = read_choice(u, graph, choice->tensor, n_rows, &text);
        if (data && choice->is_neurons)
            count_neurons(layer->counts, choice->n_hot, data, n_rows);
        if (data && choice->cold != MR_NO_TENSOR && (data = read_choice(u, graph, choice->cold, n_rows, &text)))
            count_neurons(layer->counts + choice->n_hot, choice->n - choice->n_hot, data, n_rows);
        if (!data)
            return mr_err_set(err, text.status, "%s", text.text);
        if (!choice->is_neurons)
            status = count_experts(layer, choice, data, mr_graph_tensor(graph, choice->tensor)->row_bytes, n_rows, err);
        layer->n_rows += (uint64_t)n_rows;
    }
    return status;
}

const mr_use_counts *use_counts_layers(const use_counts *u, int32_t *out_n) {
    *out_n = u ? u->n_layers : 0;
    return u ? u->layers : NULL;
}
