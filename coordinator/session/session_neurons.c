/* coordinator/session/session_neurons.c - the neurons of sparse models that --gpu-index asks for. Neurons are not
 * renumbered, because the order of their sums would change: a device can hold the first ones of a layer only. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/console/output.h"
#include "coordinator/session/session.h"
#include "engine/gguf/gpu_index.h"

mr_status mr_session_read_gpu_index(mr_session *s, mr_err *err) {
    const char *path = mr_options_text(s->options, MR_OPTION_GPU_INDEX);
    mr_gpu_index index;
    mr_gguf *g = NULL;
    s->hot_partitions = -1;
    if (!path)
        return MR_OK;
    mr_status status = mr_gguf_open(path, &g, err);
    if (status == MR_OK)
        status = mr_gpu_index_read(g, &s->info, &index, err);
    mr_gguf_close(g);
    if (status != MR_OK)
        return mr_err_prefix(err, "--gpu-index %.160s", path);
    if (mr_gpu_index_is_prefix(&index))
        s->hot_partitions = index.hot_partitions;
    else
        mr_output_warning("--gpu-index %s is not used: only %.0f %% of the neurons that it names are the first ones of "
                          "their layers, and a device can hold no others; hint: renumber the model's neurons by how "
                          "often they are active",
                          path, 100.0 * (double)index.n_first / (double)index.n_neurons);
    return MR_OK;
}
