"""The web page: the tasks of the checkpoint's head. It loads nothing from the network.

Each tab is a function that connects inputs, outputs and examples with a function of `answers.py`.
"""

import html
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import gradio as gr
from gradio.components import Component
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from snugbert.card_snugbert import escape
from snugbert.demo import answers
from snugbert.demo.answers import LoadedCheckpoint
from snugbert.errors import InputError
from snugbert.modeling_snugbert import (
    SnugBertForMaskedLM,
    SnugBertForMultipleChoice,
    SnugBertForNextSentencePrediction,
    SnugBertForPreTraining,
    SnugBertForQuestionAnswering,
    SnugBertForReplacedTokenDetection,
    SnugBertForSequenceClassification,
    SnugBertForTokenClassification,
    SnugBertModel,
)
from snugbert.prediction.predictor import QuestionAnswerer

# Names that DNS cannot redirect to another machine.
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# About 20,000 English words. A question about a text of 100,000 periods (one token each) takes up to 1 GB of memory.
MOST_CHARACTERS = 100_000
MOST_BYTES = 2**20  # per request: enough for the longest text in any script


def build_page(name: str, checkpoint: LoadedCheckpoint) -> gr.Blocks:
    """Builds the page of a checkpoint. `name` is its title."""
    with gr.Blocks(title=f"{name} · SnugBERT", analytics_enabled=False) as page:
        gr.Markdown(f"# {escape(name)}\n{answers.headline(checkpoint)}")
        for title, fill in TABS[type(checkpoint.model)].items():
            with gr.Tab(title):
                fill(checkpoint)
    return page


# --- serving ----------------------------------------------------------------------------------------------------


def serve(page: gr.Blocks, host: str, port: int | None = None, inbrowser: bool = False) -> None:
    """Serves a page in a thread until it is closed. Refuses large requests, uploads and requests from other websites.

    The `Host` header of a request must be `host` or a loopback name. At 0.0.0.0 any name is accepted, because the
    names of the machine are unknown.
    """
    # A website can point its own name at this machine (DNS rebinding). Its scripts would then have the page's origin.
    hosts = ["*"] if host == "0.0.0.0" else [*LOOPBACK_NAMES, host]
    guards = [
        Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False),
        Middleware(SameOriginMiddleware),
        Middleware(RequestBodyLimitMiddleware, max_body_size=MOST_BYTES),
    ]
    page.launch(
        server_name=host,
        server_port=port,
        inbrowser=inbrowser,
        prevent_thread_lock=True,
        share=False,
        quiet=True,
        footer_links=["gradio", "settings"],
        # The browser's own fonts. Other fonts would be loaded from the network.
        theme=gr.themes.Soft(
            primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
        ),
        app_kwargs={"middleware": guards},
        max_file_size=0,  # no uploads
        # Environment variables could start a second server without the middleware.
        ssr_mode=False,
        num_workers=0,
    )


class SameOriginMiddleware:
    """Answers 403 to requests that a browser sends for another website.

    Browsers name the website in `Origin`. curl, gradio_client and links to the page do not send it, and are allowed.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or answers 403."""
        app, headers = self.app, Headers(scope=scope) if scope["type"] == "http" else Headers()
        if "origin" in headers and headers["origin"].partition("://")[2] != headers.get("host"):
            app = PlainTextResponse("Requests from other websites are refused.", status_code=403)
        await app(scope, receive, send)


# --- tabs -------------------------------------------------------------------------------------------------------


def fill_mask_tab(checkpoint: LoadedCheckpoint) -> None:
    """Predicts the words of each mask in a text."""
    mask, guesses = checkpoint.tokenizer.mask_token, gr.State([], render=False)
    examples = [[f"The capital of France is {mask}."], [f"Open the {mask} for reading and {mask}."]]
    inputs = [text_input(f"Text with {mask}")]
    add_form(answers.fill_masks, checkpoint, "Fill the mask", inputs, [guesses], examples)

    @gr.render(inputs=guesses)
    def show(guesses: list[dict[str, float]]) -> None:
        with gr.Row():
            for index, words in enumerate(guesses, start=1):
                gr.Label(words, label=mask if len(guesses) == 1 else f"{mask} {index}")


def next_sentence_tab(checkpoint: LoadedCheckpoint) -> None:
    """Predicts whether the second sentence follows the first."""
    first = "The old house stood at the end of the road."
    add_form(
        answers.next_sentence,
        checkpoint,
        "Does it follow?",
        [text_input("First sentence"), text_input("Second sentence")],
        [gr.Label(label="The second sentence", render=False)],
        [[first, "Nobody had lived in it for years."], [first, "Penguins are birds that cannot fly."]],
    )


def classify_tab(checkpoint: LoadedCheckpoint) -> None:
    """Classifies a text or a pair: one label, several labels, or regression."""
    config: Any = checkpoint.model.config
    several, thresholds = config.problem_type == "multi_label_classification", getattr(config, "thresholds", {})
    title = "Labels, independent of each other" if several else "Label"
    if thresholds:  # the heading would be the most probable label
        title += f". Predicted: {', '.join(f'{label} from {value:.0%}' for label, value in thresholds.items())}"
    add_form(
        answers.classify,
        checkpoint,
        "Classify",
        [text_input("Text"), text_input("Second text (for models trained on pairs)")],
        [gr.Label(label=title, show_heading=not several and not thresholds, render=False)],
        [
            ["A warm, funny and touching film.", ""],
            ["The plot is thin and the jokes are old.", ""],
            ["A man is playing a guitar.", "Somebody plays an instrument."],
        ],
    )


def tag_tab(checkpoint: LoadedCheckpoint) -> None:
    """Highlights the entities of a text."""
    examples = [
        ["Ada Lovelace met Charles Babbage in London in 1833."],
        ["The European Commission asked Germany and France to talk to Siemens about it."],
    ]
    add_form(answers.tag, checkpoint, "Tag", [text_input("Text")], [marked_text("Entities")], examples)


def replaced_tab(checkpoint: LoadedCheckpoint) -> None:
    """Highlights words that do not fit a text."""
    output = marked_text("Replaced words")
    examples = [["The chef ate the meal that the guests had ordered."], ["The capital of France is London."]]
    add_form(answers.find_replaced, checkpoint, "Find replaced words", [text_input("Text")], [output], examples)


def question_tab(checkpoint: LoadedCheckpoint) -> None:
    """Answers a question from a text, and highlights the answer."""
    try:
        answerer = QuestionAnswerer(*checkpoint)
    except ValueError as error:
        raise InputError(str(error)) from error
    info = "For models trained with unanswerable questions (SQuAD 2.0)."
    may_be_none = gr.Checkbox(value=True, label="Allow “no answer”", info=info, render=False)
    history = (
        "Charles Babbage designed the Analytical Engine in 1837 and worked on it until his death in 1871. It was "
        "never finished, because money ran out and he quarrelled with his engineer."
    )
    questions = ("Who designed the Analytical Engine?", "When did Babbage die?", "How much did the engine cost?")
    add_form(
        answers.answer,
        answerer,
        "Answer",
        [text_input("Question"), text_input("Text (any length)"), may_be_none],
        [
            marked_text("The answer in the text", shows_kinds=False),
            gr.Label(label="Answers", render=False),
        ],
        [[question, history, True] for question in questions],
    )


def choose_tab(checkpoint: LoadedCheckpoint) -> None:
    """Scores how well each choice continues a text."""
    add_form(
        answers.choose,
        checkpoint,
        "Choose",
        [text_input("Text or question"), text_input("Choices (one per line)")],
        [gr.Label(label="Choice", render=False)],
        [["She opened the umbrella because", "it had begun to rain.\nthe soup was hot.\nher train was late."]],
    )


def similarity_tab(checkpoint: LoadedCheckpoint) -> None:
    """Computes the similarity of two texts."""
    title = "Cosine similarity of mean token vectors"
    add_form(
        answers.similarity,
        checkpoint,
        "Compare",
        [text_input("Text"), text_input("Another text")],
        [gr.Number(label=title, precision=3, interactive=False, render=False)],
        [["How do I bake bread?", "A recipe for a loaf with yeast"]],
    )


TABS: dict[type, dict[str, Callable[[LoadedCheckpoint], None]]] = {
    SnugBertModel: {"Similarity": similarity_tab},
    SnugBertForPreTraining: {"Fill the mask": fill_mask_tab, "Next sentence": next_sentence_tab},
    SnugBertForMaskedLM: {"Fill the mask": fill_mask_tab},
    SnugBertForReplacedTokenDetection: {"Find replaced words": replaced_tab},
    SnugBertForNextSentencePrediction: {"Next sentence": next_sentence_tab},
    SnugBertForSequenceClassification: {"Classify": classify_tab},
    SnugBertForTokenClassification: {"Tag entities": tag_tab},
    SnugBertForQuestionAnswering: {"Answer a question": question_tab},
    SnugBertForMultipleChoice: {"Choose": choose_tab},
}


# --- forms ------------------------------------------------------------------------------------------------------


def text_input(label: str) -> gr.Textbox:
    """Creates an input for text, which [`add_form`] places."""
    return gr.Textbox(label=label, lines=2, max_lines=12, render=False)


def marked_text(label: str, shows_kinds: bool = True) -> gr.HighlightedText:
    """Creates an output for text with marks."""
    return gr.HighlightedText(label=label, show_inline_category=shows_kinds, elem_classes="marked", render=False)


def add_form(
    function: Callable[..., Any],
    model: Any,
    title: str,
    inputs: Sequence[Component],
    outputs: Sequence[Component],
    examples: Sequence[list[Any]],
) -> None:
    """Places inputs, a button and outputs. The button, Enter or an example runs `function`, one of `answers.py`.

    The first argument of `function` is the `model`. Models of other languages than English get no examples.
    """
    for component in inputs:
        component.render()
    button = gr.Button(title, variant="primary")
    for component in outputs:
        component.render()
    answered = show_errors(partial(function, model))
    # One call at a time, so that the model can use all cores.
    triggers = [button.click, *(each.submit for each in inputs if isinstance(each, gr.Textbox))]
    gr.on(triggers, answered, list(inputs), list(outputs), concurrency_id="model")
    if answers.is_english(model):
        gr.Examples(list(examples), inputs, outputs, answered, run_on_click=True, cache_examples=False)


def show_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Shows an [`InputError`] of `function` on the page. Refuses long texts, because tokens take kilobytes each."""

    @wraps(function)
    def answered(*inputs: Any) -> Any:
        longest = max((len(text) for text in inputs if isinstance(text, str)), default=0)
        try:
            if longest > MOST_CHARACTERS:
                raise InputError(
                    f"The text has {longest:,} characters. The limit is {MOST_CHARACTERS:,}. Shorten the text."
                )
            return function(*inputs)
        except InputError as error:  # escaped: messages may quote input, and the page renders HTML
            raise gr.Error(html.escape(str(error)), print_exception=False) from None

    return answered
