/* engine/base/own_ports.h - the TCP ports on which this program listens itself, as opposed to libraries in its process.
 * A few ports; more are not kept. Threads: any. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_ENGINE_BASE_OWN_PORTS_H
#define MR_ENGINE_BASE_OWN_PORTS_H

#include <stdbool.h>
#include <stdint.h>

/* port: as in a socket address, in network byte order; not 0. */
void mr_own_ports_add(uint16_t port);
bool mr_own_ports_has(uint16_t port);

#endif
