/* coordinator/serving/rerank/reranker.h - what a model file of a reranker has beside the model: the template of a
 * prompt, and the rank head. The model computes the hidden row of the last token of such a prompt. The rank head makes
 * the score of the document from this row.
 * Format:  that of llama.cpp's converter for Qwen3-Reranker. The template is tokenizer.chat_template.rerank, a text
 *          with the places {query} and {document}. The head is the tensor cls.output.weight, [n_embd, n_labels].
 *          ARCH.classifier.output_labels names the labels. The score is the probability of the first label ("yes").
 * Owns:    copies of all that it needs; the file may be closed.
 * Threads: a reranker does not change: any number of threads may use it.
 * Errors:  MR_E_NO_MEMORY; others are named at the function. */
// SPDX-License-Identifier: Apache-2.0
#ifndef MR_COORDINATOR_SERVING_RERANK_RERANKER_H
#define MR_COORDINATOR_SERVING_RERANK_RERANKER_H

#include "engine/gguf/model_info.h"
#include "engine/text/buffers.h"

enum { MR_RERANKER_MAX_LABELS = 64 };

typedef struct mr_reranker mr_reranker;

/* *out is NULL where the file has no rank head: the model is no reranker. MR_E_FORMAT: the head, the labels or the
 * template do not fit; the text names the tensor or the key. MR_E_UNSUPPORTED: the type of the head's weights. */
MR_MUST_USE mr_status mr_reranker_load(const mr_gguf *gguf, const mr_model_info *info, mr_reranker **out, mr_err *err);
/* NULL is accepted. */
void mr_reranker_destroy(mr_reranker *r);

/* Appends the prompt. It is to be tokenised with MR_ENCODE_PARSE_SPECIAL. false: no memory. */
MR_MUST_USE bool mr_reranker_prompt(const mr_reranker *r, mr_str query, mr_str document, mr_text_buf *out);

/* The score, 0 to 1, by rule H of engine/NUMERICS.md. row: [n_embd] f32, finite: the last hidden row of the prompt. */
double mr_reranker_score(const mr_reranker *r, const float *row);

#endif
