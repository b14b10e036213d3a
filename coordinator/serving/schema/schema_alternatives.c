/* coordinator/serving/schema/schema_alternatives.c - the properties of all alternatives as those of one object. Forms
 * of calls need this that write an argument before it is known which alternative holds. */
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/serving/schema/schema_internal.h"

#include <string.h>

enum { MAX_DEPTH = 4 }; /* alternatives within alternatives; a schema may refer to itself */

static bool has(const json_t *list, const json_t *value) {
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v) {
        if (json_equal(v, value))
            return true;
    }
    return false;
}

/* Adds to out's keyword the values of both lists. Without one of the lists there is no limit. */
static void put_both(json_t *out, const char *keyword, const json_t *a, const json_t *b) {
    json_t *list = a && b ? json_copy((json_t *)a) : NULL, *v;
    size_t i;
    json_array_foreach(b, i, v) {
        if (list && !has(list, v))
            json_array_append(list, v);
    }
    if (list)
        json_object_set_new(out, keyword, list);
}

/* The types and constants of both schemas; NULL without memory. */
static json_t *widest(schema_writer *w, json_t *a, json_t *b) {
    static const char *const LISTS[] = {"type", "enum"};
    schema_all x = {0}, y = {0};
    json_t *out = json_object();
    if (schema_flatten(w, a, &x) == MR_OK && schema_flatten(w, b, &y) == MR_OK && !json_array_size(x.choices) &&
        !json_array_size(y.choices))
        for (size_t i = 0; i < sizeof LISTS / sizeof LISTS[0]; i++) {
            const json_t *one = json_object_get(x.keywords, LISTS[i]), *other = json_object_get(y.keywords, LISTS[i]);
            if (schema_spend(w, json_array_size(one) + 1, json_array_size(other) + 1))
                put_both(out, LISTS[i], one, other);
        }
    schema_all_deinit(&x);
    schema_all_deinit(&y);
    return out;
}

/* Adds to `added` what the alternatives describe and `properties` does not. */
static void collect(schema_writer *w, const json_t *choices, const json_t *properties, json_t *added, int depth) {
    size_t i, k;
    json_t *choice, *one, *value;
    const char *name;
    json_array_foreach(choices, i, choice) {
        json_array_foreach(json_object_get(choice, "of"), k, one) {
            schema_all inner = {0};
            if (w->status == MR_OK && schema_spend(w, 1, 1) && schema_flatten(w, one, &inner) == MR_OK) {
                json_object_foreach(json_object_get(inner.keywords, "properties"), name, value) {
                    json_t *before = json_object_get(added, name);
                    if (json_object_get(properties, name) || (before && json_equal(before, value)))
                        continue;
                    if (json_object_set_new(added, name, before ? widest(w, before, value) : json_incref(value)) != 0)
                        schema_no_memory(w);
                }
                if (depth < MAX_DEPTH)
                    collect(w, inner.choices, properties, added, depth + 1);
            }
            schema_all_deinit(&inner);
        }
    }
}

void schema_add_properties(schema_writer *w, const json_t *choices, json_t *keywords) {
    const json_t *own = json_object_get(keywords, "properties");
    json_t *all = own ? json_copy((json_t *)own) : json_object(), *added = json_object();
    if (all && added)
        collect(w, choices, own, added, 1);
    if (!all || !added || json_object_update(all, added) != 0 || json_object_set(keywords, "properties", all) != 0)
        schema_no_memory(w);
    json_decref(all);
    json_decref(added);
}
