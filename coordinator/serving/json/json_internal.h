/* coordinator/serving/json/json_internal.h - how a long number looks to jansson. Internal to this folder. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_JSON_JSON_INTERNAL_H
#define MR_COORDINATOR_SERVING_JSON_JSON_INTERNAL_H

#include "coordinator/serving/json/json.h"

/* The name of the only member of a long number: U+FDD0, which Unicode keeps for uses inside a program. */
#define JSON_LONG_NAME "\xEF\xB7\x90"

#endif
