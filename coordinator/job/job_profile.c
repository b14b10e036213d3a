/* coordinator/job/job_profile.c - collects from the stages how often each expert or neuron was used. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/job/job_internal.h"
#include "engine/base/clock.h"

static const int64_t COUNTS_NS = 60 * MR_NS_PER_S;

/* Sends ReportUses to every stage as soon as there is room for it. */
static mr_status ask_for_counts(mr_job *job, bool *asked, mr_err *err) {
    Millrace__ReportUses report_uses = MILLRACE__REPORT_USES__INIT;
    const Millrace__Control message = mr_msg_control_of(&report_uses.base);
    bool ready = false;
    mr_status status = mr_stage_links_ready(job->epoch.links, &ready, err);
    if (status == MR_OK && ready)
        status = mr_stage_links_send(job->epoch.links, &message, NULL, err);
    *asked = status == MR_OK && ready;
    return status;
}

static const job_stage *first_uncounted(const mr_job *job) {
    for (int32_t i = 0; i < job->epoch.plan.n_stages; i++)
        if (!job->epoch.stages[i].has_counted)
            return &job->epoch.stages[i];
    return NULL;
}

mr_status mr_job_collect_profile(mr_job *job, mr_profile *out, mr_err *err) {
    int64_t deadline = mr_clock_now_ns() + COUNTS_NS;
    mr_profile profile = {0};
    bool asked = false;
    mr_status status = MR_OK;
    MR_ASSERT(job->config.counts_uses && !job->epoch.stopped);
    for (int32_t i = 0; i < job->epoch.plan.n_stages; i++)
        job->epoch.stages[i].has_counted = false;
    job->profile = &profile;
    while (status == MR_OK && first_uncounted(job)) {
        bool did = false;
        if (!asked)
            status = ask_for_counts(job, &asked, err);
        if (status == MR_OK)
            status = job_take_reports(job, &did, err);
        if (status == MR_OK && !did && mr_clock_now_ns() >= deadline)
            status = mr_err_set(err, MR_E_TIMEOUT, "stage %d has not reported its counts in %d s",
                                (int)(first_uncounted(job) - job->epoch.stages), (int)(COUNTS_NS / MR_NS_PER_S));
        else if (status == MR_OK && !did && first_uncounted(job))
            status = job_wait(job, deadline, err);
    }
    job->profile = NULL;
    status = job_find_cause(job, status, err);
    if (status == MR_OK)
        *out = profile;
    else
        mr_profile_deinit(&profile);
    return status;
}
