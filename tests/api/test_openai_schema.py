# SPDX-License-Identifier: Apache-2.0
"""200 answers of the demo model at temperature 1 that are bound to schemas validate, and end by themselves."""
import concurrent.futures
import json
import unittest

import test_packages

test_packages.enter("openai", "jsonschema")

import jsonschema  # noqa: E402
from openai_case import Case  # noqa: E402

N_ANSWERS, N_CLIENTS = 200, 16
NAME = {"type": "string", "minLength": 1, "maxLength": 12}
SCHEMAS = [
    {"type": "object", "properties": {"name": NAME, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                                      "kind": {"enum": ["miller", "mouse", "river"]}},
     "required": ["name", "age", "kind"], "additionalProperties": False},
    {"type": "array", "items": {"type": "integer", "minimum": -9, "maximum": 9}, "minItems": 2, "maxItems": 5},
    {"type": "object", "properties": {"friends": {"type": "array", "items": {"$ref": "#/$defs/friend"}, "maxItems": 2}},
     "required": ["friends"], "additionalProperties": False,
     "$defs": {"friend": {"type": "object", "properties": {"name": NAME, "good": {"type": "boolean"}},
                          "required": ["name"], "additionalProperties": False}}},
    {"type": "object", "properties": {"day": {"type": "string", "pattern": "^[0-9]{4}-[01][0-9]$"},
                                      "what": {"anyOf": [{"type": "null"}, NAME]}, "so": {"const": "it is"}},
     "required": ["day", "what", "so"], "additionalProperties": False},
]


class Schemas(Case):
    def ask(self, i):
        schema = SCHEMAS[i % len(SCHEMAS)]
        choice = self.chat(f"Tell me of miller number {i}.", temperature=1, seed=i, max_tokens=250, response_format={
            "type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": schema}}).choices[0]
        self.assertEqual(choice.finish_reason, "stop", choice.message.content)
        jsonschema.validate(json.loads(choice.message.content), schema)
        return choice.message.content

    def test_answers(self):
        with concurrent.futures.ThreadPoolExecutor(N_CLIENTS) as clients:
            answers = list(clients.map(self.ask, range(N_ANSWERS)))
        self.assertGreater(len(set(answers)), N_ANSWERS // 4)

    def test_json_object(self):
        choice = self.chat(temperature=1, max_tokens=100, response_format={"type": "json_object"}).choices[0]
        self.assertTrue(choice.message.content.lstrip().startswith("{"))
        if choice.finish_reason == "stop":
            self.assertIsInstance(json.loads(choice.message.content), dict)


if __name__ == "__main__":
    unittest.main()
