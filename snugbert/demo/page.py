"""The web page: tabs for the checkpoint's head, and a tab for attention. It loads nothing from the network.

Each tab is a function that creates inputs, outputs and examples, and connects them with a function of `answers.py`.
"""

import html
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import gradio as gr
import torch
from gradio.components import Component, FormComponent
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from snugbert.card_snugbert import escape
from snugbert.data.languages import DEFAULT
from snugbert.demo import answers
from snugbert.demo.answers import LoadedCheckpoint
from snugbert.demo.attention_plots import draw_heat_map, draw_overview
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
from snugbert.prediction.question_answerer import QuestionAnswerer
from snugbert.tasks.base import list_labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito (2008), "Color Universal Design": colors that colorblind people can distinguish. Black and yellow are
# left out: black does not stand out, and white text on yellow is unreadable.
MARKS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MOST_TOKENS = 64  # in a heat map: labels of more tokens are unreadable
STYLE = """
.heat-map { overflow-x: auto; }
table.attention { border-collapse: collapse; font-size: 12px; line-height: 1; margin: auto; width: auto; }
table.attention, table.attention * { border: none !important; font-weight: 400; }
table.attention th { padding: 1px 6px; text-align: right; white-space: nowrap; }
table.attention thead th { padding: 6px 1px; text-align: left; transform: rotate(180deg); writing-mode: vertical-rl; }
table.attention tbody td { background-clip: content-box; height: var(--cell); min-width: var(--cell); padding: 0.5px; }
.overview img { max-width: 600px !important; }
.marked .textfield { display: block; word-break: normal; }
.marked .token-container, .marked .token { display: inline; }
.marked .textfield, .marked .token { font-size: 0; }  /* hides spaces that are not in the text */
.marked .highlighted { color: inherit !important; font-size: var(--text-md); margin: 0; }
.marked .line-break { display: block; }
.marked .text { font-size: var(--text-md); }
"""
# Names that DNS cannot redirect to another machine.
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# About 20,000 English words. A question about a text of 100,000 periods (one token each) takes up to 1 GB of memory.
MOST_CHARACTERS = 100_000
MOST_BYTES = 2**20  # per request: enough for the longest text in any script


def build_page(name: str, checkpoint: LoadedCheckpoint) -> gr.Blocks:
    """Builds the page of a checkpoint.

    Args:
        name: title of the page.
        checkpoint: from [`load_checkpoint`].
    """
    with gr.Blocks(title=f"{name} · SnugBERT", analytics_enabled=False) as page:
        gr.Markdown(f"# {escape(name)}\n{answers.headline(checkpoint)}")
        for title, fill in TABS[type(checkpoint.model)].items():
            with gr.Tab(title):
                fill(checkpoint)
        with gr.Tab("Attention"):
            attention_tab(checkpoint)
    return page


# --- serving ----------------------------------------------------------------------------------------------------


def serve(page: gr.Blocks, host: str, port: int | None = None, inbrowser: bool = False) -> None:
    """Serves a page in a thread until it is closed. Refuses large requests, uploads and requests from other websites.

    Args:
        page: from [`build_page`].
        host: the address to serve on. The `Host` header of a request must be this address or a loopback name. At
            0.0.0.0 any name is accepted, because the names of the machine are unknown.
        port: the port. None: the first free port from 7860.
        inbrowser: whether to open the page in a browser on this machine.
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
        css=STYLE,
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
    mask = checkpoint.tokenizer.mask_token
    text = gr.Textbox(label=f"Text with {mask}", lines=2, max_lines=10)
    button = gr.Button("Fill the mask", variant="primary")
    guesses = gr.State([])

    @gr.render(inputs=guesses)
    def show(guesses: list[dict[str, float]]) -> None:
        with gr.Row():
            for index, words in enumerate(guesses, start=1):
                gr.Label(words, label=mask if len(guesses) == 1 else f"{mask} {index}")

    examples = [[sentence] for sentence in answers.list_masked_sentences(checkpoint)]
    language = answers.find_language(checkpoint)
    connect(answers.fill_masks, checkpoint, button, [text], [guesses], examples, language)


def next_sentence_tab(checkpoint: LoadedCheckpoint) -> None:
    """Predicts whether the second sentence follows the first."""
    with gr.Row():
        with gr.Column():
            first, second = gr.Textbox(label="First sentence", lines=2), gr.Textbox(label="Second sentence", lines=2)
            button = gr.Button("Does it follow?", variant="primary")
        scores = gr.Label(label="The second sentence")
    connect(
        answers.next_sentence,
        checkpoint,
        button,
        [first, second],
        [scores],
        [
            ["The old house stood at the end of the road.", "Nobody had lived in it for years."],
            ["The old house stood at the end of the road.", "Penguins are birds that cannot fly."],
        ],
    )


def classify_tab(checkpoint: LoadedCheckpoint) -> None:
    """Classifies a text or a pair: one label, several labels, or regression."""
    config: Any = checkpoint.model.config
    several, thresholds = config.problem_type == "multi_label_classification", getattr(config, "thresholds", {})
    title = "Labels, independent of each other" if several else "Label"
    if thresholds:  # the heading would be the most probable label
        title += f". Predicted: {', '.join(f'{label} from {value:.0%}' for label, value in thresholds.items())}"
    with gr.Row():
        with gr.Column():
            text = gr.Textbox(label="Text", lines=3, max_lines=12)
            second = gr.Textbox(label="Second text (for models trained on pairs)", lines=1, max_lines=12)
            button = gr.Button("Classify", variant="primary")
        output = gr.Label(label=title, show_heading=not several and not thresholds)
    connect(
        answers.classify,
        checkpoint,
        button,
        [text, second],
        [output],
        [
            ["A warm, funny and touching film.", ""],
            ["The plot is thin and the jokes are old.", ""],
            ["A man is playing a guitar.", "Somebody plays an instrument."],
        ],
    )


def tag_tab(checkpoint: LoadedCheckpoint) -> None:
    """Highlights the entities of a text."""
    kinds = sorted({label.split("-", 1)[-1] for label in list_labels(checkpoint.model.config)} - {"O"})
    colors = {kind: MARKS[index % len(MARKS)] for index, kind in enumerate(kinds)}
    text = gr.Textbox(label="Text", lines=3, max_lines=12)
    button = gr.Button("Tag", variant="primary")
    marked = gr.HighlightedText(label="Entities", color_map=colors, elem_classes="marked")
    connect(
        answers.tag,
        checkpoint,
        button,
        [text],
        [marked],
        [
            ["Ada Lovelace met Charles Babbage in London in 1833."],
            ["The European Commission asked Germany and France to talk to Siemens about it."],
            ["Real Madrid beat Juventus 4-1 in Cardiff, and Cristiano Ronaldo scored twice for the Spanish side."],
        ],
    )


def replaced_tab(checkpoint: LoadedCheckpoint) -> None:
    """Highlights words that do not fit a text."""
    text = gr.Textbox(label="Text", lines=3, max_lines=12)
    button = gr.Button("Find replaced words", variant="primary")
    marked = gr.HighlightedText(label="Replaced words", color_map={"replaced": MARKS[0]}, elem_classes="marked")
    connect(
        answers.find_replaced,
        checkpoint,
        button,
        [text],
        [marked],
        [["The chef ate the meal that the guests had ordered."], ["The capital of France is London."]],
    )


def question_tab(checkpoint: LoadedCheckpoint) -> None:
    """Answers a question from a text, and highlights the answer."""
    try:
        answerer = QuestionAnswerer(*checkpoint)
    except ValueError as error:
        raise InputError(str(error)) from error
    with gr.Row():
        with gr.Column():
            question = gr.Textbox(label="Question")
            context = gr.Textbox(label="Text (any length)", lines=8, max_lines=20)
            may_be_none = gr.Checkbox(
                value=True,
                label="Allow “no answer”",
                info="For models trained with unanswerable questions (SQuAD 2.0).",
            )
            button = gr.Button("Answer", variant="primary")
        with gr.Column():
            scores = gr.Label(label="Answers")
            marked = gr.HighlightedText(
                label="The answer in the text",
                color_map={"answer": MARKS[0]},
                show_inline_category=False,
                elem_classes="marked",
            )
    history = (
        "Charles Babbage designed the Analytical Engine in 1837 and worked on it until his death in 1871. It was "
        "never finished, because money ran out and he quarrelled with his engineer. Ada Lovelace translated an "
        "article about the machine by the Italian engineer Luigi Menabrea and added notes three times as long, in "
        "which she described how it could compute Bernoulli numbers."
    )
    questions = ("Who designed the Analytical Engine?", "When did Babbage die?", "How much did the engine cost?")
    connect(
        answers.answer,
        answerer,
        button,
        [question, context, may_be_none],
        [marked, scores],
        [[question, history, True] for question in questions],
    )


def choose_tab(checkpoint: LoadedCheckpoint) -> None:
    """Scores how well each choice continues a text."""
    with gr.Row():
        with gr.Column():
            text = gr.Textbox(label="Text or question", lines=2)
            choices = gr.Textbox(label="Choices (one per line)", lines=4, max_lines=12)
            button = gr.Button("Choose", variant="primary")
        scores = gr.Label(label="Choice")
    connect(
        answers.choose,
        checkpoint,
        button,
        [text, choices],
        [scores],
        [["She opened the umbrella because", "it had begun to rain.\nthe soup was hot.\nher train was late."]],
    )


def similarity_tab(checkpoint: LoadedCheckpoint) -> None:
    """Computes the similarity of two texts."""
    with gr.Row():
        with gr.Column():
            first, second = gr.Textbox(label="Text", lines=2), gr.Textbox(label="Another text", lines=2)
            button = gr.Button("Compare", variant="primary")
        cosine = gr.Number(label="Cosine similarity of mean token vectors", precision=3, interactive=False)
    connect(
        answers.similarity,
        checkpoint,
        button,
        [first, second],
        [cosine],
        [
            ["How do I bake bread?", "A recipe for a loaf with yeast"],
            ["The train to Glasgow leaves at nine.", "Wash the lettuce before you cut it."],
        ],
    )


def attention_tab(checkpoint: LoadedCheckpoint) -> None:
    """Shows the attention weights of one head, and an overview of all heads."""
    config = checkpoint.model.config
    with gr.Row():
        text = gr.Textbox(answers.choose_sentence(checkpoint), label="Text", lines=2, scale=2)
        second = gr.Textbox(label="Second text (optional)", lines=2)
    with gr.Row():
        layer = number_input("Layer", config.num_hidden_layers)
        head = number_input("Head", config.num_attention_heads)
    button = gr.Button("Show attention", variant="primary")
    heat_map = gr.HTML(container=True, min_height=120, elem_classes="heat-map")
    overview = gr.Plot(show_label=False, elem_classes="overview")
    inputs = [text, second, layer, head]
    connect(show_all_heads, checkpoint, button, inputs, [heat_map, overview])
    gr.on(
        [layer.change, head.change],
        show_errors(partial(show_one_head, checkpoint)),
        inputs,
        heat_map,
        trigger_mode="always_last",
        concurrency_id="model",
    )


def number_input(label: str, count: int) -> gr.Number | gr.Slider:
    """Creates an input for a number from 1 to `count`. It is hidden if `count` is 1."""
    if count == 1:
        return gr.Number(1, precision=0, visible=False)
    return gr.Slider(1, count, value=1, step=1, label=label)


def connect(
    function: Callable[..., Any],
    model: Any,
    button: gr.Button,
    inputs: Sequence[FormComponent],
    outputs: Sequence[Component],
    examples: Sequence[list[Any]] = (),
    language: str = DEFAULT,
) -> None:
    """Runs `function` when the button is clicked, Enter is pressed or an example is chosen.

    Args:
        function: a function of `answers.py`, or one that draws attention.
        model: the first argument of `function`, with a model and a tokenizer.
        button: the button.
        inputs: components for the other arguments of `function`.
        outputs: components for the results of `function`.
        examples: example inputs. Only text columns with different values are displayed.
        language: language of the examples. A model for a different language gets no examples.
    """
    answered = show_errors(partial(function, model))
    texts = {index: component for index, component in enumerate(inputs) if isinstance(component, gr.Textbox)}
    # One call at a time, so that the model can use all cores.
    triggers = [button.click, *(text.submit for text in texts.values())]
    gr.on(triggers, answered, inputs, outputs, concurrency_id="model")
    if examples and answers.find_language(model) == language:
        columns = [index for index in texts if len(examples) == 1 or len({row[index] for row in examples}) > 1]
        gr.Examples(
            list(examples), inputs, outputs, answered, run_on_click=True, cache_examples=False, visible_columns=columns
        )


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


# --- attention --------------------------------------------------------------------------------------------------


def show_all_heads(
    checkpoint: LoadedCheckpoint, text: str, second: str, layer: int, head: int
) -> tuple[str, "Figure"]:
    """Draws the heat map of one head and the overview of all heads. Layer and head count from 1."""
    tokens, weights = attention_to_show(checkpoint, text, second)
    return draw_heat_map(tokens, weights, layer, head), draw_overview(weights)


def show_one_head(checkpoint: LoadedCheckpoint, text: str, second: str, layer: int, head: int) -> str:
    """Draws the heat map of one head. Layer and head count from 1."""
    return draw_heat_map(*attention_to_show(checkpoint, text, second), layer, head)


def attention_to_show(checkpoint: LoadedCheckpoint, text: str, second: str) -> tuple[list[str], torch.Tensor]:
    """Computes tokens and weights as [`answers.attention`] does.

    Raises:
        InputError: too many tokens for a heat map, or see [`answers.encode`].
    """
    tokens, weights = answers.attention(checkpoint, text, second)
    if len(tokens) > MOST_TOKENS:
        raise InputError(
            f"The text has {len(tokens)} tokens. A heat map shows at most {MOST_TOKENS}. Shorten the text."
        )
    return tokens, weights
