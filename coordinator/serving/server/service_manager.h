/* coordinator/serving/server/service_manager.h - reports the state of the server to systemd, or to another service
 * manager that has set NOTIFY_SOCKET.
 * Source:  sd_notify(3): a datagram of lines such as READY=1 to a Unix socket.
 * Threads: any.
 * Errors:  none: without the variable nothing is sent, and a message that cannot be sent is dropped. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_SERVER_SERVICE_MANAGER_H
#define MR_COORDINATOR_SERVING_SERVER_SERVICE_MANAGER_H

void mr_service_manager_is_ready(void);
void service_manager_is_reloading(void);
void mr_service_manager_is_stopping(void);

#endif
