// SPDX-License-Identifier: Apache-2.0
#include "engine/base/own_ports.h"

#include <stdatomic.h>

enum { MOST = 16 };

static atomic_ushort ports[MOST]; /* 0: free */

void mr_own_ports_add(uint16_t port) {
    for (int i = 0; i < MOST; i++) {
        unsigned short none = 0;
        if (atomic_compare_exchange_strong(&ports[i], &none, port) || none == port)
            return;
    }
}

bool mr_own_ports_has(uint16_t port) {
    for (int i = 0; i < MOST; i++)
        if (atomic_load(&ports[i]) == port)
            return true;
    return false;
}
