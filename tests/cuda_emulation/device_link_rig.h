/* tests/cuda_emulation/device_link_rig.h - a hop between two emulated GPUs in one thread: both ends of a device link,
 * with backends, channels and slots. Rows of a step have values that follow from its number.
 * Owns:    all of it, from open to close, which checks that nothing is left.
 * Threads: caller serialises.
 * Errors:  those of links are returned; all others fail the test. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_TESTS_CUDA_EMULATION_DEVICE_LINK_RIG_H
#define MR_TESTS_CUDA_EMULATION_DEVICE_LINK_RIG_H

#include "backends/backend.h"
#include "engine/base/clock.h"
#include "proto/channel_local.h"
#include "proto/device_link.h"
#include "tests/cuda_emulation/fake_nccl.h"

enum { LINK_COLUMNS = 24, LINK_ROWS = 11, LINK_SENDER = 0, LINK_RECEIVER = 1 };
static const int64_t LINK_LIMIT_NS = 20 * MR_NS_PER_S; /* of any wait */

/* One end. */
typedef struct link_rig_one {
    mr_backend *be;
    mr_buffer *slots;
    mr_channel *channel;
    mr_device_link *link;
    float *rows; /* [LINK_ROWS, LINK_COLUMNS] in pinned memory */
} link_rig_one;

typedef struct link_rig {
    mr_local_hub *hub;
    link_rig_one at[2];
} link_rig;

/* What an end is made with. */
typedef struct link_rig_wish {
    mr_way way;
    bool must, has_no_device, same_device;
    uint32_t version; /* of the receiver; 0: that of NCCL */
} link_rig_wish;

/* As a new process, with two GPUs. NULL: NCCL works. */
void link_rig_prepare(const fake_nccl_options *nccl);
void link_rig_open(link_rig *r);
/* Ends what is left of both sides. */
void link_rig_close(link_rig *r);
/* Ends one side as a rank that stops: transfers are given up, and then the memory goes. */
void link_rig_stop_end(link_rig_one *e);
/* Creates the link of an end. The status is that of the link. */
mr_status link_rig_end(link_rig *r, int32_t which, const link_rig_wish *w, mr_err *err);
/* Polls both ends until both are open or one fails. Returns the status of the first that fails. */
mr_status link_rig_agree(link_rig *r, mr_err *err);
/* Creates both links, and agrees. */
mr_status link_rig_link(link_rig *r, const link_rig_wish *w, mr_err *err);
/* The link's queue of a device; creates it. */
mr_status link_rig_queue(void *backend, void **out, mr_err *err);

mr_frame link_rig_frame(int32_t step);
/* Sends a step if a slot is free. */
bool link_rig_send(link_rig_one *e, int32_t step);
/* Carries n steps over the hop, and compares their rows. */
void link_rig_carry(link_rig *r, int32_t n);
/* Sends a frame from the sender's endpoint without a transfer: the sender is lost behind it, or lies. */
void link_rig_send_frame_alone(link_rig *r, const mr_frame *f);
/* Polls an end until it fails, and expects this error. */
void link_rig_expect_error(link_rig_one *e, mr_status status, const char *words);

#endif
