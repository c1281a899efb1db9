"""The page: what fits the checkpoint's head, and attention. Nothing in it is fetched from the network.

A tab is a function that lays out its inputs, outputs and examples, and says which function of `answers.py` answers.
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
from snugbert.demo import answers
from snugbert.demo.answers import LoadedCheckpoint
from snugbert.errors import InputError
from snugbert.modeling_snugbert import (
    SnugBertForMaskedLM,
    SnugBertForMultipleChoice,
    SnugBertForNextSentencePrediction,
    SnugBertForPreTraining,
    SnugBertForQuestionAnswering,
    SnugBertForSequenceClassification,
    SnugBertForTokenClassification,
    SnugBertModel,
)
from snugbert.plots import GREY, TITLE, new_figure
from snugbert.question_answering.answerer import QuestionAnswerer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito (2008), "Color Universal Design": eight colours that the colour-blind tell apart, without black, which
# is no mark, and yellow, on which white letters cannot be read.
MARKS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
SHADES = "cividis"  # made for the colour-blind to see as others do (Nuñez et al., 2018)
MOST_TOKENS = 64  # of a picture: labels of more cannot be read
WIDTH, LARGEST_CELL = 832, 26  # of the table and of its squares, in pixels
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
.marked .textfield, .marked .token { font-size: 0; }  /* the spaces between pieces are none of the text */
.marked .highlighted { color: inherit !important; font-size: var(--text-md); margin: 0; }
.marked .line-break { display: block; }
.marked .text { font-size: var(--text-md); }
"""
# Names that DNS cannot point at another machine.
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# The longest text: about 20,000 English words. A question on 100,000 full stops, one token each, takes up to 1 GB.
MOST_CHARACTERS = 100_000
MOST_BYTES = 2**20  # the largest request: enough for the longest text in any script


def build_page(name: str, checkpoint: LoadedCheckpoint) -> gr.Blocks:
    """The page of a checkpoint, for [`serve`].

    Args:
        name: what the page calls it.
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
        port: default: the first free one from 7860 on.
        inbrowser: open the page in the browser of this machine.
    """
    # A website can point its own name at this machine (DNS rebinding). Its scripts would then share our origin.
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
        # The fonts of the browser: others would be fetched.
        theme=gr.themes.Soft(
            primary_hue="blue", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
        ),
        css=STYLE,
        app_kwargs={"middleware": guards},
        max_file_size=0,  # the page takes no files
        # The environment could ask for a second server, which has no guards.
        ssr_mode=False,
        num_workers=0,
    )


class SameOriginMiddleware:
    """Answers 403 to requests that a browser sends for another website.

    curl and gradio_client send neither `Origin` nor `Sec-Fetch-Site`. They are answered.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or answers 403."""
        app = self.app
        if scope["type"] == "http" and is_foreign(scope["method"], Headers(scope=scope)):
            app = PlainTextResponse("Requests from other websites are refused.", status_code=403)
        await app(scope, receive, send)


def is_foreign(method: str, headers: Headers) -> bool:
    """Whether another website made a browser send this request. Following a link to the page is allowed."""
    origin = headers.get("origin")
    if origin is not None:
        return origin.partition("://")[2] != headers.get("host")
    return method not in ("GET", "HEAD") and headers.get("sec-fetch-site", "none") not in ("same-origin", "none")


# --- tabs -------------------------------------------------------------------------------------------------------


def fill_mask_tab(checkpoint: LoadedCheckpoint) -> None:
    """A text with masks -> a list of words for each."""
    mask = checkpoint.tokenizer.mask_token
    text = gr.Textbox(label=f"Text with {mask}", lines=2, max_lines=10)
    button = gr.Button("Fill the mask", variant="primary")
    guesses = gr.State([])

    @gr.render(inputs=guesses)
    def show(guesses: list[dict[str, float]]) -> None:
        with gr.Row():
            for number, words in enumerate(guesses, start=1):
                gr.Label(words, label=mask if len(guesses) == 1 else f"{mask} {number}")

    sentences = (
        f"The capital of France is {mask}.",
        f"Open the {mask} for reading and {mask}.",
        f"She put the {mask} on the table.",
    )
    run(answers.fill_masks, checkpoint, button, [text], [guesses], [[sentence] for sentence in sentences])


def next_sentence_tab(checkpoint: LoadedCheckpoint) -> None:
    """Two sentences -> does the second follow?"""
    with gr.Row():
        with gr.Column():
            first, second = gr.Textbox(label="First sentence", lines=2), gr.Textbox(label="Second sentence", lines=2)
            button = gr.Button("Does it follow?", variant="primary")
        scores = gr.Label(label="The second sentence")
    run(
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
    """A text or a pair -> its label, labels, or a number."""
    several = checkpoint.model.config.problem_type == "multi_label_classification"
    with gr.Row():
        with gr.Column():
            text = gr.Textbox(label="Text", lines=3, max_lines=12)
            second = gr.Textbox(label="Second text, if the model was trained on pairs", lines=1, max_lines=12)
            button = gr.Button("Classify", variant="primary")
        output = gr.Label(label="Labels, each by itself" if several else "Label", show_heading=not several)
    run(
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
    """A text -> the same text with its entities in colour."""
    kinds = sorted({label.split("-", 1)[-1] for label in answers.list_labels(checkpoint)} - {"O"})
    colors = {kind: MARKS[number % len(MARKS)] for number, kind in enumerate(kinds)}
    text = gr.Textbox(label="Text", lines=3, max_lines=12)
    button = gr.Button("Tag", variant="primary")
    marked = gr.HighlightedText(label="Entities", color_map=colors, elem_classes="marked")
    run(
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


def question_tab(checkpoint: LoadedCheckpoint) -> None:
    """A question and a text -> the text with the answer marked, and the likeliest answers."""
    try:
        answerer = QuestionAnswerer(*checkpoint)
    except ValueError as error:
        raise InputError(str(error)) from error
    with gr.Row():
        with gr.Column():
            question = gr.Textbox(label="Question")
            context = gr.Textbox(label="Text of any length", lines=8, max_lines=20)
            may_be_none = gr.Checkbox(
                value=True,
                label="The text may not hold the answer",
                info="Models that were trained on such questions can tell (SQuAD 2.0).",
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
    run(
        answers.answer,
        answerer,
        button,
        [question, context, may_be_none],
        [marked, scores],
        [[question, history, True] for question in questions],
    )


def choose_tab(checkpoint: LoadedCheckpoint) -> None:
    """A text and choices -> how likely each goes on from it."""
    with gr.Row():
        with gr.Column():
            text = gr.Textbox(label="Text or question", lines=2)
            choices = gr.Textbox(label="Choices, one a line", lines=4, max_lines=12)
            button = gr.Button("Choose", variant="primary")
        scores = gr.Label(label="Choice")
    run(
        answers.choose,
        checkpoint,
        button,
        [text, choices],
        [scores],
        [["She opened the umbrella because", "it had begun to rain.\nthe soup was hot.\nher train was late."]],
    )


def similarity_tab(checkpoint: LoadedCheckpoint) -> None:
    """Two texts -> how similar they are."""
    with gr.Row():
        with gr.Column():
            first, second = gr.Textbox(label="Text", lines=2), gr.Textbox(label="Another text", lines=2)
            button = gr.Button("Compare", variant="primary")
        cosine = gr.Number(label="Cosine of their mean token vectors", precision=3, interactive=False)
    run(
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
    """A text or a pair, a layer and a head -> who reads whom, and all heads at a glance."""
    config = checkpoint.model.config
    with gr.Row():
        text = gr.Textbox("The cat sat on the mat because it was tired.", label="Text", lines=2, scale=2)
        second = gr.Textbox(label="Second text, if any", lines=2)
    with gr.Row():
        layer, head = one_of("Layer", config.num_hidden_layers), one_of("Head", config.num_attention_heads)
    button = gr.Button("Show attention", variant="primary")
    heat_map = gr.HTML(container=True, min_height=120, elem_classes="heat-map")
    overview = gr.Plot(show_label=False, elem_classes="overview")
    inputs = [text, second, layer, head]
    run(look_at_all, checkpoint, button, inputs, [heat_map, overview])
    gr.on(
        [layer.change, head.change],
        shown(partial(look_at_one, checkpoint)),
        inputs,
        heat_map,
        trigger_mode="always_last",
        concurrency_id="model",
    )


def one_of(label: str, count: int) -> gr.Number | gr.Slider:
    """A number from 1 to `count`; nothing to be seen where there is no choice."""
    if count == 1:
        return gr.Number(1, precision=0, visible=False)
    return gr.Slider(1, count, value=1, step=1, label=label)


def run(
    function: Callable[..., Any],
    model: Any,
    button: gr.Button,
    inputs: Sequence[FormComponent],
    outputs: Sequence[Component],
    examples: Sequence[list[Any]] = (),
) -> None:
    """Has `function` of the model and the inputs fill the outputs: at the button, at Enter, and for an example.

    Args:
        function: one of `answers.py`, or of the pictures below.
        model: its first argument.
        button: starts it.
        inputs: its other arguments.
        outputs: what it returns.
        examples: of inputs. Those that are texts are shown, apart from a text that all examples share.
    """
    answered = shown(partial(function, model))
    texts = {number: component for number, component in enumerate(inputs) if isinstance(component, gr.Textbox)}
    # One at a time: the model has all cores for itself.
    starts = [button.click, *(text.submit for text in texts.values())]
    gr.on(starts, answered, inputs, outputs, concurrency_id="model")
    if examples:
        telling = [number for number in texts if len(examples) == 1 or len({row[number] for row in examples}) > 1]
        gr.Examples(
            list(examples), inputs, outputs, answered, run_on_click=True, cache_examples=False, visible_columns=telling
        )


def shown(function: Callable[..., Any]) -> Callable[..., Any]:
    """Shows an [`InputError`] of `function` on the page. Refuses texts that are too long."""

    @wraps(function)
    def answered(*inputs: Any) -> Any:
        try:
            check_length(inputs)
            return function(*inputs)
        except InputError as error:  # may quote what was typed, and the page takes messages for HTML
            raise gr.Error(html.escape(str(error)), print_exception=False) from None

    return answered


def check_length(inputs: Sequence[Any]) -> None:
    """Refuses long texts before tokenizing, which takes kilobytes per character.

    Raises:
        InputError: more characters than the page takes.
    """
    longest = max((len(text) for text in inputs if isinstance(text, str)), default=0)
    if longest > MOST_CHARACTERS:
        raise InputError(f"The text has {longest:,} characters. The limit is {MOST_CHARACTERS:,}. Shorten it.")


TABS: dict[type, dict[str, Callable[[LoadedCheckpoint], None]]] = {
    SnugBertModel: {"Similarity": similarity_tab},
    SnugBertForPreTraining: {"Fill the mask": fill_mask_tab, "Next sentence": next_sentence_tab},
    SnugBertForMaskedLM: {"Fill the mask": fill_mask_tab},
    SnugBertForNextSentencePrediction: {"Next sentence": next_sentence_tab},
    SnugBertForSequenceClassification: {"Classify": classify_tab},
    SnugBertForTokenClassification: {"Tag entities": tag_tab},
    SnugBertForQuestionAnswering: {"Answer a question": question_tab},
    SnugBertForMultipleChoice: {"Choose": choose_tab},
}


# --- pictures of attention --------------------------------------------------------------------------------------


def look_at_all(checkpoint: LoadedCheckpoint, text: str, second: str, layer: int, head: int) -> tuple[str, "Figure"]:
    """The heat map of a head, counted from 1, and the overview of all of them."""
    tokens, weights = readable_attention(checkpoint, text, second)
    return draw_heat_map(tokens, weights, layer, head), draw_overview(weights)


def look_at_one(checkpoint: LoadedCheckpoint, text: str, second: str, layer: int, head: int) -> str:
    """The heat map of a head, counted from 1."""
    return draw_heat_map(*readable_attention(checkpoint, text, second), layer, head)


def readable_attention(checkpoint: LoadedCheckpoint, text: str, second: str) -> tuple[list[str], torch.Tensor]:
    """Tokens and weights, as [`answers.attention`] has them.

    Raises:
        InputError: more tokens than a picture can show, or see [`answers.encode`].
    """
    tokens, weights = answers.attention(checkpoint, text, second)
    if len(tokens) > MOST_TOKENS:
        raise InputError(f"The text has {len(tokens)} tokens, and a picture shows {MOST_TOKENS} at most: shorten it.")
    return tokens, weights


def draw_heat_map(tokens: Sequence[str], weights: torch.Tensor, layer: int, head: int) -> str:
    """A head as a table in HTML, in which the browser has letters for the tokens of any language.

    Args:
        tokens: that read, a row each, and that are read, a column each.
        weights: of all heads. *Shape:* (layers, heads, T, T)
        layer, head: which, counted from 1.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    of_head = weights[layer - 1, head - 1]
    shades = colormaps[SHADES]((of_head / of_head.max()).numpy())
    names = [html.escape(token) for token in tokens]
    rows = ""
    for reader, colors, numbers in zip(names, shades, of_head.tolist(), strict=True):
        cells = "".join(
            f'<td style="background-color: {to_hex(color)}" title="{reader} reads {name}: {number:.0%}"></td>'
            for name, color, number in zip(names, colors, numbers, strict=True)
        )
        rows += f'<tr><th scope="row">{reader}</th>{cells}</tr>'
    columns = "".join(f'<th scope="col">{name}</th>' for name in names)
    return (
        f"<p>Layer {layer}, head {head}: how much the token of a row reads of each token, from 0 (dark) to "
        f'{of_head.max():.0%} (light).</p><table class="attention" style="--cell: '
        f'{min(LARGEST_CELL, WIDTH / len(names)):.1f}px"><thead><tr><td></td>{columns}</tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def draw_overview(weights: torch.Tensor) -> "Figure":
    """All heads in small, each from 0 to its largest weight: a row for each layer, a column for each head.

    Args:
        weights: *Shape:* (layers, heads, T, T)
    """
    layers, heads, length, _ = weights.shape
    tiles = weights / weights.amax(dim=(2, 3), keepdim=True)
    # A line without colour to the right of every head and below it.
    tiles = torch.nn.functional.pad(tiles, (0, 1, 0, 1), value=torch.nan).transpose(1, 2).flatten(2).flatten(0, 1)
    figure = new_figure(7, 7 * layers / heads + 0.6)
    panel = figure.add_subplot()
    panel.imshow(tiles.numpy(), cmap=SHADES, vmin=0, vmax=1, interpolation="nearest")
    middles = [number * (length + 1) + (length - 1) / 2 for number in range(max(layers, heads))]
    panel.set_xticks(middles[:heads], [str(number) for number in range(1, heads + 1)])
    panel.set_yticks(middles[:layers], [str(number) for number in range(1, layers + 1)])
    panel.set_xlabel("head")
    panel.set_ylabel("layer")
    panel.set_title("All heads", **TITLE)
    panel.tick_params(length=0, colors=GREY)
    panel.spines[:].set_visible(False)
    return figure
