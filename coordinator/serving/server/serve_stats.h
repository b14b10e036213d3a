/* coordinator/serving/server/serve_stats.h - the numbers of a serving session for the page (GET /page/state) and for
 * Prometheus (GET /metrics).
 * Life:    create, before the model is opened; planned; started; paused, while the plan changes, and started
 *          again; paused, before the session is closed; destroy.
 * Owns:    copies of its texts. Borrows: the service; from planned or started to paused the session.
 * Threads: planned, started, ranks and paused are for the main thread; the other functions for any.
 * Errors:  MR_E_NO_MEMORY. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_SERVER_SERVE_STATS_H
#define MR_COORDINATOR_SERVING_SERVER_SERVE_STATS_H

#include "coordinator/serving/page/page.h"
#include "coordinator/serving/service/service.h"
#include "coordinator/session/session.h"

typedef struct serve_stats serve_stats;

/* model: the name in /v1/models. */
MR_MUST_USE mr_status mr_serve_stats_create(mr_service *service, const char *model, serve_stats **out, mr_err *err);
void mr_serve_stats_destroy(serve_stats *f);

/* To be called when the session has a plan and sizes: stages are shown from then on, while they load. */
void mr_serve_stats_planned(serve_stats *f, mr_session *session);
/* To be called when the job of the session runs a plan, the first or another one, or waits for memory: then no stage
 * runs. */
void mr_serve_stats_started(serve_stats *f, const mr_session *session);
/* To be called when the states of ranks have changed. */
void mr_serve_stats_ranks(serve_stats *f, const mr_session *session);
/* To be called before the plan changes, and before the session is closed. Until `started`, the metrics of stages and
 * ranks stay as they are, and the page shows no stages. */
void mr_serve_stats_paused(serve_stats *f);

/* Whether another plan is being made, so that requests wait. */
bool serve_stats_changes_plan(serve_stats *f);
/* Appends the answer to GET /page/state. m: see mr_page_write_state. */
MR_MUST_USE mr_status serve_stats_write(serve_stats *f, const mr_metrics *m, mr_text_buf *out, mr_err *err);
/* Sets the gauges in m to their present values; to be called before the metrics are written. */
MR_MUST_USE mr_status serve_stats_count(serve_stats *f, mr_metrics *m, mr_err *err);

#endif
