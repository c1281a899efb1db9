"""`snugbert demo`: serves a web page to try a checkpoint, until Ctrl-C.

`--help` imports this module, so Gradio and the models are imported inside the functions.
"""

import html
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import transformers
from transformers.utils import logging

import snugbert
from snugbert.cli.arguments import argument
from snugbert.errors import InputError

if TYPE_CHECKING:
    import gradio as gr

# Names that DNS cannot redirect to another machine.
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
INTERRUPTED = 130  # exit status after Ctrl-C
MOST_BYTES = 2**18  # per request: about 40,000 English words. A token takes kilobytes of memory.


@dataclass(kw_only=True)
class DemoArguments:
    """Arguments of `snugbert demo`."""

    model: str = argument(help="Checkpoint of the BERT family: a folder or a Hub name.")
    host: str = argument(
        "127.0.0.1", "Address to serve on. 0.0.0.0 opens the page to everyone who can reach this machine."
    )
    port: int | None = argument(None, "Port. Default: the first free port from 7860.")
    inbrowser: bool = argument(False, "Open the page in a browser on this machine.")


def run_demo(args: DemoArguments) -> None:
    """Serves the page, and prints its address. This is `snugbert demo`."""
    from snugbert.families.loading import check_repository

    with socket.create_server((args.host, args.port or 0)) as server:  # fails early. Gradio would try 100 ports
        address = server.getsockname()[0]
    check_repository(args.model)
    # Gradio reads these variables on import. By default it sends usage reports, and stores inputs in the browser.
    os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_RUN_HISTORY": "False"}
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    page = build_page(args.model)
    serve_page(page, args.host, args.port, args.inbrowser)
    if not ip_address(address).is_loopback:
        warning = "anyone who can reach this machine can use the model. There is no password and no encryption."
        print(f"snugbert demo: warning: --host {args.host}: {warning}", file=sys.stderr)
    print(f"Serving {args.model} at {page.local_url} (Ctrl-C to stop)", flush=True)
    try:
        while True:
            time.sleep(1)
    except KeyboardInterrupt:
        # A normal exit waits for open requests, and aborts if a thread is still running the model.
        os._exit(INTERRUPTED)


def serve_page(page: "gr.Blocks", host: str, port: int | None = None, inbrowser: bool = False) -> None:
    """Serves a page in a thread until it is closed. Refuses large requests and uploads."""
    import gradio as gr
    from starlette.middleware import Middleware
    from starlette.middleware.body_limit import RequestBodyLimitMiddleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    # A website can point its own name at this machine (DNS rebinding). Its scripts would then have the page's origin.
    # At 0.0.0.0, any name is accepted, because the names of the machine are unknown.
    hosts = ["*"] if host == "0.0.0.0" else [*LOOPBACK_NAMES, host]
    guards = [
        Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False),
        Middleware(RequestBodyLimitMiddleware, max_body_size=MOST_BYTES),
    ]
    # The browser's own fonts. Other fonts would be loaded from the network.
    theme = gr.themes.Soft(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    page.launch(
        server_name=host,
        server_port=port,
        inbrowser=inbrowser,
        prevent_thread_lock=True,
        share=False,
        quiet=True,
        show_error=True,
        theme=theme,
        app_kwargs={"middleware": guards},
        max_file_size=0,  # no uploads
    )


# --- the page ---------------------------------------------------------------------------------------------------


def build_page(name: str) -> "gr.Blocks":
    """Builds the page of a checkpoint. It has a form for the checkpoint's head, or two for a pretrained model."""
    import gradio as gr

    from snugbert.cli.model_arguments import ModelArguments
    from snugbert.families.loading import load_config, load_model, load_tokenizer
    from snugbert.families.reading import CLASSES, HEADS_BY_CLASS
    from snugbert.prediction.predictor import choose_device

    args = ModelArguments(model_name_or_path=name)
    tokenizer = load_tokenizer(args)
    config = load_config(args, tokenizer)
    architecture = (config.architectures or ["none"])[0]
    head = HEADS_BY_CLASS.get(architecture, "")
    heads = ["ForMaskedLM", "ForNextSentencePrediction"] if head == "ForPreTraining" else [head]
    if heads[0] not in FORMS:
        raise InputError(f"{name}: there is no page for the architecture {architecture}. Expected a head for a task.")
    forms = []
    for each in heads:
        model: Any = load_model(CLASSES["snugbert"][each], args, config, trained=True)
        form, model = FORMS[each], model.to(choose_device()).eval()
        inputs = [gr.Textbox(label=label, lines=2) for label in form.inputs]
        outputs = [getattr(gr, component)(label=label) for label, component in form.outputs.items()]
        answer = partial(form.answer, model, tokenizer)
        forms.append(gr.Interface(answer, inputs, outputs, submit_btn=form.title, flagging_mode="never"))
    title = f"{html.escape(Path(os.path.abspath(name)).name)} · SnugBERT"  # the full path, because `name` may be "."
    return gr.TabbedInterface(forms, [FORMS[each].title for each in heads], title, analytics_enabled=False)


# --- answers ----------------------------------------------------------------------------------------------------


def fill_mask(model: Any, tokenizer: Any, text: str) -> dict[str, float]:
    """Predicts the most likely tokens for the mask, with their probabilities."""
    if text.count(tokenizer.mask_token) != 1:
        raise InputError(f"Enter {tokenizer.mask_token} in place of one word.")
    guesses = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer)(text)
    return {guess["token_str"]: guess["score"] for guess in guesses}


def classify(model: Any, tokenizer: Any, text: str, second: str) -> tuple[str, dict[str, float]]:
    """Classifies a text or a pair. Returns the predicted label, labels or number, and the labels' probabilities."""
    row = {"text": text, "second": second} if second.strip() else {"text": text}
    prediction = _predict(model, tokenizer, row, *row.values())
    return str(prediction["predicted_label"]), prediction.get("probabilities", {})


def tag(model: Any, tokenizer: Any, text: str) -> dict[str, Any]:
    """Marks the entities of a text."""
    entities = _predict(model, tokenizer, {"text": text}, text)["entities"]
    return {"text": text, "entities": [{"entity": each["label"], **each} for each in entities]}


def choose(model: Any, tokenizer: Any, text: str, choices: str) -> dict[str, float]:
    """Predicts which choice continues the text, with probabilities. Each line of `choices` is a choice."""
    lines = [line for line in choices.splitlines() if line.strip()]
    prediction = _predict(model, tokenizer, {"text": text, "choices": lines}, text, max(lines, key=len, default=""))
    return dict(zip(lines, prediction["probabilities"], strict=True))


def _predict(model: Any, tokenizer: Any, row: dict[str, Any], *texts: str) -> dict[str, Any]:
    """Predicts a row as `snugbert predict` does, but refuses `texts` that are too long."""
    from snugbert.configuration_snugbert import get_windows
    from snugbert.families.loading import max_tokens

    tokens, limit = len(tokenizer(*texts, verbose=False)["input_ids"]), max_tokens(model, tokenizer)
    if tokens > limit and get_windows(model.config) is None:
        raise InputError(f"The text has {tokens} tokens. The model's limit is {limit}. Shorten the text.")
    return snugbert.Predictor(model, tokenizer, columns=tuple(row), cuda_graphs=False)(row)


def answer_question(model: Any, tokenizer: Any, question: str, text: str) -> tuple[dict[str, Any], dict[str, float]]:
    """Answers a question from a text of any length. Returns the text with a marked answer, and answers with scores."""
    answerer = snugbert.QuestionAnswerer(model, tokenizer, cuda_graphs=False)
    answers = answerer(question, text, top_k=3, handle_impossible_answer=True)
    marked = {"text": text, "entities": [{"entity": "answer", **each} for each in answers[:1] if each["answer"]]}
    # The best answer comes first. Reversed, so that the better score is shown if two answers have the same text.
    return marked, {each["answer"] or "(no answer)": each["score"] for each in reversed(answers)}


def predict_next_sentence(model: Any, tokenizer: Any, first: str, second: str) -> dict[str, float]:
    """Predicts whether the second text follows the first or is random, with probabilities."""
    follows, random = _run(model, tokenizer(first, second, return_tensors="pt")).logits[0].softmax(-1).tolist()
    return {"follows": follows, "is random": random}


def find_replaced(model: Any, tokenizer: Any, text: str) -> dict[str, Any]:
    """Marks the words in which a token was probably replaced."""
    inputs = tokenizer(text, return_tensors="pt")
    is_replaced = (_run(model, inputs).logits[0] > 0).tolist()
    words = {word for word, replaced in zip(inputs.word_ids(), is_replaced, strict=True) if replaced} - {None}
    places = [inputs.word_to_chars(word) for word in words]
    return {"text": text, "entities": [{"entity": "replaced", "start": at.start, "end": at.end} for at in places]}


def _run(model: Any, inputs: Any) -> Any:
    with torch.inference_mode():
        return model(**inputs.to(model.device))


class Form(NamedTuple):
    """A form of the page."""

    title: str  # of the tab and the button
    answer: Callable[..., Any]  # called with the model, the tokenizer and the texts
    inputs: tuple[str, ...]  # labels of the texts
    outputs: dict[str, str]  # label -> Gradio's component


PAIR = ("Text", "Second text")
# `gr.Interface.from_pipeline` would make some of these forms, but Gradio 6.31 fails with transformers 5, which has no
# `text2text_generation`.
FORMS = {
    "ForMaskedLM": Form("Fill the mask", fill_mask, ("Text",), {"Words": "Label"}),
    "ForReplacedTokenDetection": Form("Find words", find_replaced, ("Text",), {"Replaced words": "HighlightedText"}),
    "ForNextSentencePrediction": Form("Next sentence", predict_next_sentence, PAIR, {"The second text": "Label"}),
    "ForSequenceClassification": Form("Classify", classify, PAIR, {"Predicted": "Textbox", "Probabilities": "Label"}),
    "ForTokenClassification": Form("Tag entities", tag, ("Text",), {"Entities": "HighlightedText"}),
    "ForQuestionAnswering": Form(
        "Answer", answer_question, ("Question", "Text"), {"Answer in the text": "HighlightedText", "Answers": "Label"}
    ),
    "ForMultipleChoice": Form("Choose", choose, ("Text", "Choices (one per line)"), {"Choice": "Label"}),
}
