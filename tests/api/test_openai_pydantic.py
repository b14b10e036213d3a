# SPDX-License-Identifier: Apache-2.0
"""Answers bound to the schemas that pydantic makes of its models, as response_format and as instructor asks for them (one tool
that has to be called): each is what pydantic takes for the model, and has no key that the model does not know."""
import concurrent.futures
import datetime
import enum
import itertools
import json
import os
import sys
import unittest
import uuid
from typing import Annotated, Literal, Optional, Union

import test_packages

test_packages.enter("openai", "pydantic")

from openai_case import Case  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402

# Seeds of each model in each form: 200 answers in all, fewer where a sanitizer makes each of them slow.
N_SEEDS, N_CLIENTS = max(1, 10 // int(os.environ.get("MILLRACE_TEST_SHARE") or 1)), 16
Word = Annotated[str, Field(min_length=1, max_length=8)]
Small = Annotated[int, Field(ge=0, le=99)]


class Kind(str, enum.Enum):
    miller = "miller"
    mouse = "mouse"


class Address(BaseModel):
    street: Word
    number: Annotated[int, Field(gt=0, lt=1000)]
    code: Annotated[str, Field(pattern="^[A-Z]{2}-[0-9]{4}$")]


class Person(BaseModel):
    """Somebody who lives at the mill."""
    name: Word = Field(description="as others say it")
    age: Small
    kind: Kind
    address: Address


class Team(BaseModel):
    lead: Person
    others: list[Person] = Field(max_length=2)


class Maybe(BaseModel):
    nick: Optional[Word] = None
    home: Optional[Address] = None
    mood: Literal["glad", "sad", 3] = "glad"


class Counts(BaseModel):
    grains: dict[str, Small] = Field(max_length=2)
    sure: bool


class Wheel(BaseModel):
    kind: Literal["wheel"] = "wheel"
    spokes: Small


class Stone(BaseModel):
    kind: Literal["stone"] = "stone"
    weight: Annotated[float, Field(ge=0.5, le=2)]


class Parts(BaseModel):
    first: Union[Wheel, Stone] = Field(discriminator="kind")
    rest: list[Union[Stone, Wheel, None]] = Field(max_length=2)
    size: Union[Small, bool, Word]


class Log(BaseModel):
    day: datetime.date
    at: datetime.datetime
    id: uuid.UUID
    took: datetime.timedelta


class Branch(BaseModel):
    leaf: Optional[Word] = None
    fork: list["Twig"] = Field(max_length=2)


class Twig(BaseModel):
    n: Small
    on: Optional["Twig"] = None


class Pairs(BaseModel):
    pair: tuple[Small, Word]
    bounds: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=1, max_length=3)]
    word: Word = Field(alias="theWord")


class Nothing(BaseModel):
    pass


MODELS = [Person, Team, Maybe, Counts, Parts, Log, Branch, Pairs, Nothing, Address]


def same_keys(given, known):
    """Nothing is in one that is not in the other."""
    if isinstance(given, dict) and isinstance(known, dict):
        return given.keys() == known.keys() and all(same_keys(given[k], known[k]) for k in given)
    if isinstance(given, list) and isinstance(known, list):
        return len(given) == len(known) and all(map(same_keys, given, known))
    return not isinstance(given, (dict, list))


class Pydantic(Case):
    options = ["--ctx", "2048", "-t", "1"]  # the words that tell the demo model about tools are long in its tokens
    seeds = range(N_SEEDS)

    def answer(self, model, seed, as_tool):
        schema = model.model_json_schema()
        if as_tool:
            fields = {"tools": [{"type": "function", "function": {
                "name": model.__name__, "parameters": schema,
                "description": f"Correctly extracted `{model.__name__}` with all the required parameters with correct types"}}],
                "tool_choice": {"type": "function", "function": {"name": model.__name__}}}
        else:
            fields = {"response_format": {"type": "json_schema", "json_schema": {"name": model.__name__, "schema": schema}}}
        choice = self.chat("Tell me of the mill.", temperature=0.9, seed=seed, max_tokens=900, **fields).choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls" if as_tool else "stop", choice.message)
        if not as_tool:
            return choice.message.content
        self.assertEqual([c.function.name for c in choice.message.tool_calls], [model.__name__])
        return choice.message.tool_calls[0].function.arguments

    def check(self, task):
        model, seed, as_tool = task
        text = self.answer(model, seed, as_tool)
        read = model.model_validate_json(text)
        self.assertTrue(same_keys(json.loads(text), read.model_dump(mode="json", exclude_unset=True, by_alias=True)), text)
        return text

    def test_answers(self):
        tasks = list(itertools.product(MODELS, self.seeds, (False, True)))
        with concurrent.futures.ThreadPoolExecutor(N_CLIENTS) as clients:
            answers = list(clients.map(self.check, tasks))
        self.assertGreater(len(set(answers)), len(answers) // 2)
        print(len(answers), "answers", file=sys.stderr)


if __name__ == "__main__":
    unittest.main()
