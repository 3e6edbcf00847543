"""Reading the parts of a body."""

from gateway.classify.prompt import MAX_MESSAGES, read_prompt


def chat(*pairs, **fields):
    return {"messages": [{"role": role, "content": content} for role, content in pairs], **fields}


def test_last_user_turn_decides_and_earlier_ones_inform():
    prompt = read_prompt(chat(("system", "Be brief."), ("user", "one"), ("assistant", "reply"), ("user", "two")))
    assert (prompt.system, prompt.before, prompt.reply, prompt.user, prompt.turns) == (
        "Be brief.",
        "one",
        "reply",
        "two",
        2,
    )


def test_a_single_turn_has_nothing_before_it():
    prompt = read_prompt(chat(("user", "one")))
    assert (prompt.before, prompt.reply, prompt.turns) == ("", "", 1)


def test_content_parts_are_joined_and_images_noticed():
    parts = [
        {"type": "text", "text": "what is"},
        {"type": "image_url", "image_url": {}},
        {"type": "text", "text": "this?"},
    ]
    prompt = read_prompt(chat(("user", parts)))
    assert prompt.user == "what is\nthis?"
    assert prompt.images


def test_tool_result_counts_only_while_it_is_the_last_word():
    pending = chat(("user", "weather?"), ("tool", "12 degrees"))
    assert read_prompt(pending).result == "12 degrees"
    pending["messages"].append({"role": "user", "content": "thanks"})
    assert read_prompt(pending).result == ""


def test_completions_prompt_and_first_of_several():
    assert read_prompt({"prompt": "abc"}).user == "abc"
    assert read_prompt({"prompt": ["abc", "def"]}).user == "abc"
    assert read_prompt({"prompt": [1, 2, 3]}).user == ""


def test_declared_in_metadata_and_format_and_choice():
    prompt = read_prompt(
        chat(
            ("user", "x"),
            metadata={"task": "math"},
            response_format={"type": "json_schema", "json_schema": {}},
            tool_choice={"type": "function"},
            tools=[{"type": "function"}],
            prediction={"type": "content", "content": "def f(): pass"},
        )
    )
    assert (prompt.declared, prompt.response_format, prompt.tool_choice) == ("math", "json_schema", "named")
    assert len(prompt.tools) == 1
    assert prompt.prediction == "def f(): pass"


def test_response_format_text_is_no_format():
    assert read_prompt(chat(("user", "x"), response_format={"type": "text"})).response_format is None


def test_guided_decoding_is_a_format():
    assert read_prompt(chat(("user", "x"), guided_json={"type": "object"})).response_format == "guided_json"


def test_long_conversations_keep_the_first_message_and_the_last_ones():
    turns = [("system", "S")] + [("user", str(i)) for i in range(10 * MAX_MESSAGES)]
    prompt = read_prompt(chat(*turns))
    assert prompt.system == "S"
    assert prompt.user == str(10 * MAX_MESSAGES - 1)
    assert prompt.turns == MAX_MESSAGES
