// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/step_times.h"

double mr_step_times_at(const mr_step_times *t, double rows) {
    if (t->n == 0 || rows <= 0)
        return 0;
    if (t->n == 1 || rows <= t->rows[0])
        return t->seconds[0];
    int32_t i = 1;
    while (i + 1 < t->n && rows > t->rows[i])
        i++;
    double slope = (t->seconds[i] - t->seconds[i - 1]) / (t->rows[i] - t->rows[i - 1]);
    /* Measured noise must not make more rows cheaper than fewer. */
    double beyond = rows > t->rows[i] && slope < 0 ? 0 : slope;
    return rows > t->rows[i] ? t->seconds[i] + beyond * (rows - t->rows[i])
                             : t->seconds[i - 1] + slope * (rows - t->rows[i - 1]);
}

double mr_step_times_ratio(const mr_step_times *t, const mr_step_times *to) {
    double sum = 0, sum_to = 0;
    for (int32_t i = 0; i < t->n; i++) {
        sum += t->seconds[i];
        sum_to += mr_step_times_at(to, t->rows[i]);
    }
    return sum_to > 0 ? sum / sum_to : 0;
}
