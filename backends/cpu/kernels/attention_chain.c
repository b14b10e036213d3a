/* backends/cpu/kernels/attention_chain.c - orders the calls that compute the partitions of a chain, so that partitions
 * are merged in ascending order. The partition before was claimed earlier by a running thread, so a wait is short.
 * However, threads may share cores, and then the other thread may need the core of the waiting one. So the wait yields
 * after some spins. */
// SPDX-License-Identifier: Apache-2.0
#include <sched.h>
#include <stdatomic.h>

#include "backends/cpu/kernels.h"
#include "engine/base/thread.h"

enum { SPINS = 100 };

void mr_attention_chain_wait(mr_attention_chain *chain, int32_t partition) {
    for (int i = 0; atomic_load_explicit(&chain->next, memory_order_acquire) != partition; i++) {
        if (i < SPINS)
            mr_cpu_pause();
        else
            sched_yield();
    }
}

void mr_attention_chain_pass(mr_attention_chain *chain, int32_t partition) {
    int32_t next = partition + 1 == chain->last ? chain->first : partition + 1;
    atomic_store_explicit(&chain->next, next, memory_order_release);
}
