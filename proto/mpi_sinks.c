// SPDX-License-Identifier: Apache-2.0
#include "proto/mpi_sinks.h"

#include <stdatomic.h>
#include <stdint.h>

#include "engine/base/clock.h"
#include "engine/base/mem.h"
#include "engine/base/thread.h"

enum { SINKS = 16, SINKS_OF_RANK = 4 };
/* LIFE_NS: the sender of a message notices that its epoch has ended, or is lost, well within this time. */
static const int64_t LIFE_NS = 30 * MR_NS_PER_S, LOOK_NS = 10 * MR_NS_PER_MS;

typedef struct sink {
    MPI_Comm comm;
    int rank, tag;
    size_t most_bytes;
    int64_t end_ns; /* 0: the place is free */
} sink;

struct mr_mpi_sinks {
    mr_mutex lock; /* guards the list */
    atomic_int n_used;
    int n;
    int64_t look_ns; /* time of the last look */
    /* The message that is being taken. */
    void *buffer; /* NULL: none */
    MPI_Request request;
    sink sinks[];
};

mr_status mr_mpi_sinks_create(int n_ranks, mr_mpi_sinks **out, mr_err *err) {
    size_t n = SINKS + SINKS_OF_RANK * (size_t)n_ranks;
    mr_mpi_sinks *s = mr_alloc(sizeof *s + n * sizeof(sink));
    if (!s)
        return mr_err_set(err, MR_E_NO_MEMORY, "no memory for MPI");
    s->n = (int)n;
    mr_mutex_init(&s->lock);
    *out = s;
    return MR_OK;
}

void mr_mpi_sinks_destroy(mr_mpi_sinks *s) {
    if (!s)
        return;
    mr_mutex_deinit(&s->lock);
    if (!s->buffer) /* else MPI may still write to it */
        mr_free(s);
}

static sink *find_sink(mr_mpi_sinks *s, MPI_Comm comm, int rank, int tag) {
    for (int i = 0; i < s->n; i++)
        if (s->sinks[i].end_ns != 0 && s->sinks[i].comm == comm && s->sinks[i].rank == rank && s->sinks[i].tag == tag)
            return &s->sinks[i];
    return NULL;
}

static void free_sink(mr_mpi_sinks *s, sink *k) {
    k->end_ns = 0;
    atomic_fetch_sub(&s->n_used, 1);
}

void mr_mpi_sinks_add(mr_mpi_sinks *s, MPI_Comm comm, int rank, int tag, size_t most_bytes) {
    mr_mutex_lock(&s->lock);
    sink *k = find_sink(s, comm, rank, tag);
    for (int i = 0; i < s->n && (!k || k->end_ns != 0); i++) /* a free place, else the one that ends first */
        if (!k || s->sinks[i].end_ns < k->end_ns)
            k = &s->sinks[i];
    if (k->end_ns == 0)
        atomic_fetch_add(&s->n_used, 1);
    *k =
        (sink){.comm = comm, .rank = rank, .tag = tag, .most_bytes = most_bytes, .end_ns = mr_clock_now_ns() + LIFE_NS};
    mr_mutex_unlock(&s->lock);
}

void mr_mpi_sinks_remove(mr_mpi_sinks *s, MPI_Comm comm, int rank, int tag) {
    if (atomic_load_explicit(&s->n_used, memory_order_relaxed) == 0)
        return;
    mr_mutex_lock(&s->lock);
    sink *k = find_sink(s, comm, rank, tag);
    if (k)
        free_sink(s, k);
    mr_mutex_unlock(&s->lock);
}

/* Whether no message is being taken (any more). */
static bool is_free(mr_mpi_sinks *s) {
    int done = 0;
    if (s->buffer && MPI_Test(&s->request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
        return false;
    mr_free(s->buffer);
    s->buffer = NULL;
    return true;
}

/* Begins to take the next message of a sink, if there is one. The lock is held. */
static void take_next(mr_mpi_sinks *s, const sink *k) {
    MPI_Message message;
    MPI_Status status;
    int found = 0, bytes = 0;
    if (MPI_Iprobe(k->rank, k->tag, k->comm, &found, &status) != MPI_SUCCESS || !found ||
        MPI_Get_count(&status, MPI_BYTE, &bytes) != MPI_SUCCESS || (size_t)bytes > k->most_bytes)
        return;
    s->buffer = mr_alloc((size_t)bytes + 1);
    if (!s->buffer)
        return;
    if (MPI_Improbe(k->rank, k->tag, k->comm, &found, &message, &status) != MPI_SUCCESS || !found ||
        MPI_Imrecv(s->buffer, bytes, MPI_BYTE, &message, &s->request) != MPI_SUCCESS) {
        mr_free(s->buffer);
        s->buffer = NULL;
    }
}

/* Takes one message after the other, as long as each ends at once. */
void mr_mpi_sinks_drain(mr_mpi_sinks *s) {
    if (atomic_load_explicit(&s->n_used, memory_order_relaxed) == 0 && !s->buffer)
        return;
    int64_t now = mr_clock_now_ns();
    if (now - s->look_ns < LOOK_NS)
        return;
    s->look_ns = now;
    mr_mutex_lock(&s->lock);
    for (int i = 0; i < s->n && is_free(s); i++) {
        sink *k = &s->sinks[i];
        if (k->end_ns == 0)
            continue;
        if (k->end_ns <= now)
            free_sink(s, k);
        else
            take_next(s, k);
        i -= s->buffer != NULL; /* the same sink may have a further message */
    }
    mr_mutex_unlock(&s->lock);
}
