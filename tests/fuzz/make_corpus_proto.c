/* Writes the hand-made files of corpus/frame and corpus/messages into the given folder: a valid file of each kind. */
// SPDX-License-Identifier: Apache-2.0
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/frame.h"
#include "tests/unit/proto/test_proto_samples.h"

static const char *folder;

static void save(const char *name, const uint8_t *data, size_t bytes) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, bytes, f) != bytes || fclose(f) != 0) {
        fprintf(stderr, "%s: cannot be written\n", path);
        exit(1);
    }
}

static void save_frames(void) {
    for (int kind = MR_FRAME_CONTROL; kind < MR_FRAME_KINDS; kind++) {
        char name[64];
        uint8_t buffer[1 + MR_FRAME_BYTES + 32] = {MR_FRAME_BYTES + 32};
        const mr_frame f = {
            .kind = (mr_frame_kind)kind, .epoch = 3, .step = 9, .rows = 4, .row_bytes = 8, .payload_bytes = 32};
        mr_frame_seal(&f, buffer + 1);
        snprintf(name, sizeof name, "frame/kind-%d", kind);
        save(name, buffer + 1, sizeof buffer - 1);
        /* For through_a_link, which reads the length of each message first. */
        snprintf(name, sizeof name, "frame/message-%d", kind);
        save(name, buffer, sizeof buffer);
    }
    uint8_t by_device[MR_FRAME_BYTES];
    const mr_frame f = {.kind = MR_FRAME_ACTIVATIONS, .epoch = 3, .rows = 4, .row_bytes = 8, .by_device = true};
    mr_frame_seal(&f, by_device);
    save("frame/by-device", by_device, sizeof by_device);
}

/* Saves a message behind the byte that selects its kind. */
static void save_message(samples *s, message which, const char *what, int number) {
    char name[64];
    uint8_t file[1 + PACKED_BYTES] = {(uint8_t)which};
    pack(s, which);
    memcpy(file + 1, s->packed, s->bytes);
    snprintf(name, sizeof name, "messages/%s-%d", what, number);
    save(name, file, 1 + s->bytes);
}

static void save_messages(void) {
    samples s;
    for (int body = MILLRACE__CONTROL__BODY_PLAN; body <= MILLRACE__CONTROL__BODY_PROBE; body++) {
        samples_init(&s, body, 1);
        save_message(&s, CONTROL, "control", body);
    }
    for (int body = MILLRACE__REPORT__BODY_READY; body <= MILLRACE__REPORT__BODY_LINK; body++) {
        samples_init(&s, 1, body);
        save_message(&s, REPORT, "report", body);
    }
    samples_init(&s, 1, MILLRACE__REPORT__BODY_MEASURED);
    save_message(&s, REPORT, "report", MILLRACE__REPORT__BODY_MEASURED);
    samples_init(&s, MILLRACE__CONTROL__BODY_REPORT_USES, MILLRACE__REPORT__BODY_USE_COUNTS);
    save_message(&s, CONTROL, "control", MILLRACE__CONTROL__BODY_REPORT_USES);
    save_message(&s, REPORT, "report", MILLRACE__REPORT__BODY_USE_COUNTS);
    save_message(&s, TOKENS, "tokens", 1);
    save_message(&s, FILE_REQUEST, "file", 1);
    save_message(&s, LINK_SETUP, "setup", 1);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: make_corpus_proto FOLDER\n");
        return 2;
    }
    folder = argv[1];
    save_frames();
    save_messages();
    return 0;
}
