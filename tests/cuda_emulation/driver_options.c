/* tests/cuda_emulation/driver_options.c - the options of the emulated driver from the environment. */
// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "tests/cuda_emulation/driver_internal.h"

enum { TEXT_BYTES = 256 };

/* Reads one word "NAME=VALUE" or "NAME". text: the word, which options may borrow. */
static bool read_word(char *text, emulated_options *o) {
    char *value = strchr(text, '=');
    if (value)
        *value++ = '\0';
    const struct {
        const char *name, **text;
        int32_t *number;
        size_t *size;
        uint64_t *seed;
        bool *flag;
    } names[] = {
        {"name", .text = &o->name},
        {"fail", .text = &o->fail},
        {"n_devices", .number = &o->n_devices},
        {"version", .number = &o->version},
        {"capability", .number = &o->capability},
        {"n_processors", .number = &o->n_processors},
        {"shared_bytes", .number = &o->shared_bytes},
        {"max_delay_us", .number = &o->max_delay_us},
        {"fail_at", .number = &o->fail_at},
        {"result", .number = &o->result},
        {"break_at", .number = &o->break_at},
        {"memory_bytes", .size = &o->memory_bytes},
        {"seed", .seed = &o->seed},
        {"no_device", .flag = &o->no_device},
        {"open_memory", .flag = &o->open_memory},
    };
    size_t i = 0, n = sizeof names / sizeof *names;
    while (i < n && strcmp(names[i].name, text) != 0)
        i++;
    if (i == n || !value != (names[i].flag != NULL))
        return false;
    if (names[i].text)
        *names[i].text = value;
    else if (names[i].number)
        *names[i].number = (int32_t)strtol(value, NULL, 10);
    else if (names[i].size)
        *names[i].size = (size_t)strtod(value, NULL);
    else if (names[i].seed)
        *names[i].seed = strtoull(value, NULL, 10);
    else
        *names[i].flag = true;
    return true;
}

emulated_options emulated_read_environment(void) {
    static char text[TEXT_BYTES];
    emulated_options o = {0};
    const char *given = getenv("EMULATED_CUDA");
    if (given && strlen(given) >= sizeof text)
        emulated_stop("EMULATED_CUDA is too long", NULL);
    strcpy(text, given ? given : "");
    char *rest = text;
    for (char *word = strtok_r(rest, " ", &rest); word; word = strtok_r(NULL, " ", &rest))
        if (!read_word(word, &o))
            emulated_stop("EMULATED_CUDA has no option", word);
    return o;
}
