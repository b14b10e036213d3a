/* coordinator/serving/page/page_files.c - the table of the page's files, with path, content type and bytes. The bytes
 * come from page_files.inc, which the build makes from the files in this folder. */
// SPDX-License-Identifier: Apache-2.0
#include "page_files.inc"
#include "coordinator/serving/page/page.h"

const char mr_page_policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

#define FILE_OF(path, type, name)                                                                                      \
    { path, type "; charset=utf-8", (const char *)name, sizeof name }

static const mr_page_file FILES[] = {
    FILE_OF("/", "text/html", EMBEDDED_page_html),
    FILE_OF("/page.css", "text/css", EMBEDDED_page_css),
    FILE_OF("/page.js", "text/javascript", EMBEDDED_page_js),
    FILE_OF("/page-chat.js", "text/javascript", EMBEDDED_page_chat_js),
    FILE_OF("/page-pipeline.js", "text/javascript", EMBEDDED_page_pipeline_js),
    FILE_OF("/page-plots.js", "text/javascript", EMBEDDED_page_plots_js),
    FILE_OF("/page-ranks.js", "text/javascript", EMBEDDED_page_ranks_js),
    FILE_OF("/page-server.js", "text/javascript", EMBEDDED_page_server_js),
};

const mr_page_file *mr_page_find(mr_str path) {
    for (size_t i = 0; i < sizeof FILES / sizeof FILES[0]; i++)
        if (mr_str_is(path, FILES[i].path))
            return &FILES[i];
    return NULL;
}
