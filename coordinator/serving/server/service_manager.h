/* coordinator/serving/server/service_manager.h - tells systemd, or whoever else has set NOTIFY_SOCKET, what a server is
 * doing.
 * Source:  sd_notify(3): a datagram of lines such as READY=1 to a Unix socket.
 * Threads: any.
 * Errors:  none: without the variable nothing happens, and what cannot be sent is lost. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_SERVER_SERVICE_MANAGER_H
#define MR_COORDINATOR_SERVING_SERVER_SERVICE_MANAGER_H

void mr_service_manager_is_ready(void);
void service_manager_is_reloading(void);
void mr_service_manager_is_stopping(void);

#endif
