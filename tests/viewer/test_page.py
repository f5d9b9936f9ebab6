"""Tests of the page that shows a trace as a file: what is in it, how it is searched and moved through, and what it withstands."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from copy import deepcopy
from typing import cast

import pytest

from agentloop.service.trace import Trace, compare_traces
from agentloop.values.visible_text import escape_invisible
from tests.viewer.browser import Browser, Page
from tests.viewer.documents import long_trace, with_call, with_execution

Show = Callable[..., Page]


def rows(page: Page) -> list[str]:
    """The titles of the rows in view."""
    return page.texts(".row .title")


def select(page: Page, title: str) -> None:
    page.click(".row .title", title, is_whole=True)


# --- the timeline -----------------------------------------------------------------------------------------------------


def test_rows_are_steps_inferences_and_calls_with_sub_agents_below_their_calls(show: Show, order: Trace) -> None:
    """The waterfall has a row for each, in the order of their start, each below the one that it belongs to."""
    page = show(order)
    titles = rows(page)
    assert titles[:6] == ["agent_1", "Step 1", "model", "stock", "price", "weather"]
    place = titles.index("research")
    assert titles[place + 2 : place + 7] == ["Step 1", "model", "search", "Step 2", "model"]
    levels = page.evaluate("[...document.querySelectorAll('[role=treeitem]')].map(row => +row.ariaLevel)")
    assert levels[place + 1] == levels[place] + 1
    assert page.evaluate("document.querySelector('.head h1').innerText") == "agent_1"


def test_bars_of_parallel_calls_overlap_and_those_of_steps_follow_each_other(show: Show, order: Trace) -> None:
    """A bar has the place and the length of its time."""
    page = show(order)

    def bar(title: str, number: int = 0) -> tuple[float, float]:
        left, right = page.evaluate(
            f"""(() => {{
                const row = [...document.querySelectorAll('.row')].filter(row => row.querySelector('.title').innerText === '{title}')[{number}];
                const box = row.querySelector('.bar').getBoundingClientRect();
                return [box.left, box.right];
            }})()"""
        )
        return float(left), float(right)

    stock, price, first, second = bar("stock"), bar("price"), bar("Step 1"), bar("Step 2")
    assert stock[0] == pytest.approx(price[0], abs=1)
    assert stock[1] > price[1] > stock[0]
    assert second[0] == pytest.approx(first[1], abs=1)


def test_failures_blocks_doubts_retries_and_changes_are_marked_counted_and_filtered(show: Show, order: Trace) -> None:
    """Each has a sign with a name in its row, a chip with its number, and the chip leaves its rows alone."""
    page = show(order)
    chips = {text.rsplit(" ", 1)[0].strip(): int(text.rsplit(" ", 1)[1]) for text in page.texts(".filters .chip")}
    assert chips == {"failed": 1, "blocked": 1, "in doubt": 1, "retried": 1, "changed": 4, "recovered": 1}
    page.click(".filters .chip", "blocked")
    assert rows(page) == ["agent_1", "Step 2", "pay"]
    assert page.evaluate("document.querySelector('.row.call .flag').ariaLabel") == "blocked"
    page.press("Escape")
    assert len(rows(page)) > 20
    page.press("x")
    assert page.text(".row.selected .title") == "Step 1"


def test_the_details_of_a_call_hold_arguments_result_and_what_was_changed(show: Show, order: Trace) -> None:
    """The arguments as they ran and as the model made them, and the result before and after, are shown with their differences."""
    page = show(order)
    select(page, "send_mail")
    detail = page.text(".detail")
    assert "order-7/2/2" in detail
    removed, added = page.texts(".diff-line.removed .diff-text"), page.texts(".diff-line.added .diff-text")
    assert '  "to": "ada@example.com",' in removed
    assert '  "to": "test@example.com",' in added
    assert any("DE89 3704 0044" in line for line in removed)
    assert page.texts(".diff-line.removed b")[0] == "ada"
    select(page, "Step 2")
    assert "CompanyRules" in page.text(".detail")
    assert "before_tool_use" in page.text(".detail")


def test_the_details_of_an_inference_hold_its_request(show: Show, order: Trace) -> None:
    """System prompt, tools, settings and messages are there, the earlier messages after a click."""
    page = show(order)
    page.press("x", "j")
    page.click(".fold-title", "System prompt")
    page.click(".fold-title", "Tools")
    detail = page.text(".detail")
    assert "You sell lamps. Ask before you pay." in detail
    assert "Look up how many items are in stock." in detail
    assert "Stock, price and weather are independent of each other." in detail
    page.click(".filters .chip", "retried")
    select(page, "model")
    assert "2: 1 retry" in page.text(".detail")
    assert page.texts(".request-message .role") == ["assistant"]
    page.click(".detail button.link", "earlier message")
    assert page.texts(".request-message .role") == ["user", "assistant", "user", "assistant"]


def test_a_doubt_says_what_is_not_known(show: Show, order: Trace) -> None:
    """A call in doubt says that it may have had its effect."""
    page = show(order)
    page.click(".filters .chip", "in doubt")
    select(page, "ship")
    assert "may have had its effect" in page.text(".detail .note.doubt")


def test_a_call_without_an_outcome_is_marked_where_its_process_has_ended(show: Show, order: Trace) -> None:
    """It is interrupted, with a sign, a chip and a status of that name, and not one that runs."""
    cut = with_execution(with_call(order, "ship", status="running", ended_at=None, value=None), status="interrupted")
    page = show(cut)
    page.click(".filters .chip", "interrupted")
    assert rows(page)[-1] == "ship"
    assert page.evaluate("document.querySelector('.row.call .flag.interrupted').ariaLabel") == "interrupted"
    select(page, "ship")
    assert page.text(".detail .badge") == "interrupted"
    assert not page.evaluate("document.querySelector('.bar.running')")


def test_attempts_of_an_inference_have_bars_and_errors(show: Show, order: Trace) -> None:
    """Each failed attempt has a bar before that of the last one, and its error is in the details."""
    changed = deepcopy(order)
    inference = changed["executions"][0]["inferences"][2]
    (attempt,) = inference["attempts"]
    attempt["delay"] = 400.0
    page = show(changed)
    page.click(".filters .chip", "retried")
    select(page, "model")
    boxes = page.evaluate(
        """['.bar.attempt', '.bar.delay', '.row.selected .bar.inference'].map(name => {
            const box = document.querySelector(name).getBoundingClientRect();
            return [box.left, box.right];
        })"""
    )
    assert boxes[0][1] == pytest.approx(boxes[1][0], abs=1)
    assert boxes[1][1] == pytest.approx(boxes[2][0], abs=1)
    assert boxes[0][1] > boxes[0][0] + 3
    detail = page.text(".detail .attempts")
    assert "ProviderUnavailable" in detail
    assert "the provider is overloaded after 800 ms; tried again after 400 ms" in detail


def test_the_time_of_a_bar_is_never_cut_off(show: Show, order: Trace) -> None:
    """It is behind the bar, before it, or in it where neither side has room."""
    page = show(order)
    outside = page.evaluate(
        """[...document.querySelectorAll('.bar-words')].filter(words => words.innerText !== '').filter(words => {
            const [box, room] = [words.getBoundingClientRect(), words.parentElement.getBoundingClientRect()];
            return box.left < room.left - 1 || box.right > room.right + 1;
        }).map(words => words.innerText)"""
    )
    assert outside == []
    assert page.text(".row.execution .bar-words") != ""


# --- moving and folding -----------------------------------------------------------------------------------------------


def test_the_keyboard_moves_folds_and_opens(show: Show, order: Trace) -> None:
    """j and k move, h and l fold, g and G jump, Enter and Escape open and close the details, t changes the theme, ? helps."""
    page = show(order)
    page.press("j")
    assert page.text(".row.selected .title") == "Step 1"
    assert (
        page.evaluate("document.querySelector('[role=tree]').getAttribute('aria-activedescendant')") == "row-order-7#1"
    )
    page.press("h")
    assert rows(page)[1:3] == ["Step 1", "Step 2"]
    assert page.evaluate("document.querySelector('.row.selected').ariaExpanded") == "false"
    page.press("l", "j")
    assert page.text(".row.selected .title") == "model"
    page.press("k", "G")
    assert page.text(".row.selected .title") == "model"
    page.press("g", "Escape")
    assert page.text(".detail") == ""
    page.press("Enter")
    assert "execution" in page.text(".detail h2")
    page.press("c")
    assert rows(page).count("model") == 0
    page.press("e", "?")
    assert "next and previous row" in page.text("dialog[open]")
    page.press("Escape")
    assert page.evaluate("document.querySelector('dialog[open]') === null")


def test_the_theme_follows_the_system_until_one_is_chosen(show: Show, order: Trace) -> None:
    """The background is light or dark as the system prefers, or as the switch says."""
    page = show(order)

    def background() -> int:
        color: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return int(color.removeprefix("rgb(").split(",")[0])

    assert background() > 200
    page.use_theme("dark")
    assert background() < 50
    page.press("t", "t")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert background() > 200


def test_results_fold(show: Show, order: Trace) -> None:
    """Lists and objects of a result are folded and unfolded, large ones are folded at first."""
    value = {"few": [1, 2], "many": {f"name {number}": number for number in range(250)}, "big": 12345678901234567890}
    page = show(with_call(order, "stock", value=value))
    select(page, "stock")
    assert "name 7" not in page.text(".detail")
    assert "12345678901234567890" in page.text(".detail")
    page.click(".json-fold", "many")
    assert "name 99" in page.text(".detail")
    assert "name 100" not in page.text(".detail")
    page.click("button.link", "Show more of 250 entries")
    assert "name 249" in page.text(".detail")
    page.click(".json-fold", "many")
    assert "name 7" not in page.text(".detail")


# --- search -----------------------------------------------------------------------------------------------------------


def test_search_finds_arguments_results_and_messages_and_steps_through_them(show: Show, order: Trace) -> None:
    """What is found is counted and marked, Enter goes to the next one, and the other rows can be left out."""
    page = show(order)
    page.press("/")
    page.type("good lamps")
    page.wait_for("document.querySelector('.search output')?.innerText === '2 found'")
    page.press("Enter")
    first = page.text(".row.selected .title")
    page.press("Enter")
    assert page.text(".row.selected .title") != first
    page.click(".search .chip", "only these")
    assert [title for title in rows(page) if title == "stock"] == []
    assert "search" in rows(page)
    page.press("Escape")
    select(page, "search")
    page.press("/")
    page.type("a page")
    page.wait_for("[...document.querySelectorAll('.detail mark')].some(mark => mark.innerText === 'a page')")


def test_search_unfolds_what_it_finds(show: Show, order: Trace) -> None:
    """A place deep in a folded result, or far in a long text, is brought into view."""
    value = {
        "outer": {f"name {number}": f"value {number}" for number in range(50)},
        "text": "word " * 4000 + "needle" + " word" * 4000,
    }
    page = show(with_call(order, "stock", value=value))
    page.press("/")
    page.type("needle")
    page.wait_for("document.querySelector('.search output')?.innerText === '1 found'")
    page.press("Enter")
    assert "needle" in page.texts(".detail mark")
    page.press("Escape", "/")
    page.type("value 33")
    page.wait_for("document.querySelector('.detail mark')?.innerText === 'value 33'")


# --- the other views --------------------------------------------------------------------------------------------------


def test_the_conversation_shows_parallel_calls_beside_each_other(show: Show, order: Trace) -> None:
    """Messages come step by step; the calls of one response are cards in one line, and a click selects the call."""
    page = show(order)
    page.press("2")
    text = page.text(".conversation")
    assert "Order a lamp for me, please." in text
    assert "In green, if there is one." in text
    tops = page.evaluate(
        "[...document.querySelectorAll('.message .cards')[0].children].map(card => card.getBoundingClientRect().top)"
    )
    assert len(tops) == 3
    assert len(set(tops)) == 1
    page.click(".card .link", "weather")
    assert "the weather service does not know 'Atlantis'" in page.text(".detail")
    page.evaluate(
        "document.querySelector('.chooser select').selectedIndex = 1; document.querySelector('.chooser select').dispatchEvent(new Event('change'))"
    )
    page.settle()
    assert "Which lamps are good?" in page.text(".conversation")


def test_curves_show_tokens_cost_and_cache_hits(show: Show, order: Trace) -> None:
    """There is a drawn chart for each figure that is known, and a click selects its inference."""
    page = show(order)
    page.press("3")
    assert page.texts(".plot h3") == ["Tokens", "Cost so far", "Cache hits", "Time"]
    page.wait_for("document.querySelectorAll('.plot canvas').length === 4")
    drawn = """[...document.querySelectorAll('.plot canvas')].map(canvas =>
        canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(byte => byte > 0))"""
    assert page.evaluate(drawn) == [True] * 4
    page.click(".plot .u-over")
    assert "inference" in page.text(".detail h2")


def test_a_chart_without_a_figure_is_left_out(show: Show, order: Trace) -> None:
    """What is unknown, or zero, for every inference has no chart."""
    execution = order["executions"][0]
    unknown = {"input_tokens": 10, "cached_input_tokens": 0, "output_tokens": 5}
    inferences = [
        {**inference, "cost": None, "usage": {**inference["usage"], **unknown}} for inference in execution["inferences"]
    ]
    page = show(cast("Trace", {**order, "executions": [{**execution, "inferences": inferences}]}))
    page.press("3")
    assert page.texts(".plot h3") == ["Tokens", "Time"]
    assert "from cache" not in page.text(".plot")


def test_the_title_of_the_page_names_the_agent_and_its_question(show: Show, order: Trace) -> None:
    """Tabs of a browser are told apart by the agent, its question and how the run ended."""
    title = show(order).evaluate("document.title")
    assert title.endswith(": Order a lamp for me, please. (completed)")


def test_the_name_of_an_agent_is_the_title(show: Show, order: Trace) -> None:
    """The title of the tab, the heading and the first row have the name; the id stays among the facts."""
    page = show(with_execution(order, agent_name="support desk"))
    assert page.evaluate("document.title") == "support desk: Order a lamp for me, please. (completed)"
    assert page.evaluate("document.querySelector('.head h1').innerText") == rows(page)[0] == "support desk"
    select(page, "support desk")
    assert {"support desk", order["executions"][0]["agent_id"]} <= set(page.texts(".detail dd"))


def test_rows_of_calls_show_what_they_led_to(show: Show, order: Trace) -> None:
    """A row of a call has its arguments, and behind them its result or its error."""
    page = show(order)
    asides = page.evaluate("[...document.querySelectorAll('.row.call .aside')].map(aside => aside.textContent)")
    assert any("\u203a 1299" in aside for aside in asides)
    assert any("\u203a" in aside and "does not know 'Atlantis'" in aside for aside in asides)


def test_an_interrupted_run_says_how_to_go_on(show: Show, order: Trace) -> None:
    """The details of an execution whose process has ended have the command that continues it."""
    page = show(with_execution(order, status="interrupted", ended_at=None))
    assert f"agentloop runs resume {order['id']}" in page.text(".detail .note")


def test_two_runs_are_compared_from_their_first_divergence(show: Show, order: Trace) -> None:
    """Steps stand beside each other, the first divergence is selected and shown as a difference, equal rows say so."""
    other = with_call(with_execution(order, id="order-8"), "price", value=1499)
    page = show(order, compare_traces(order, other))
    assert "First divergence: outcome of step 1" in page.text(".divergence")
    assert page.text(".compare-row.selected .side .title") == "price"
    assert "1299" in " ".join(page.texts(".compare-detail .diff-line.removed"))
    assert "1499" in " ".join(page.texts(".compare-detail .diff-line.added"))
    signs = page.evaluate("[...document.querySelectorAll('.compare-sign')].map(sign => sign.ariaLabel)")
    assert signs[:4] == ["differs", "equal", "equal", "first divergence"]
    page.press("j")
    assert page.text(".compare-row.selected .side .title") == "weather"
    assert "Both sides are equal." in page.text(".compare-detail")
    # The requests of the steps that a fork has from its original are not recorded with it.
    origin = {"execution_id": order["id"], "step": 1, "effects": "reuse"}
    later = [inference for inference in order["executions"][0]["inferences"] if inference["step"] > 1]
    fork = with_execution(order, id="order-7/fork-1", forked_from=origin, inferences=later)
    for equal in (order, fork):
        same = show(order, compare_traces(order, equal))
        assert "Both runs are equal." in same.text(".compare")


# --- hostile content --------------------------------------------------------------------------------------------------

HOSTILE = '</script><script>window.owned = 1</script><img src=x onerror="window.owned = 1"><!--'


def test_hostile_content_is_shown_as_text(show: Show, order: Trace) -> None:
    """Markup runs nowhere, in no view, and nothing is asked for over the network."""
    trace = with_execution(order, input=HOSTILE, output=HOSTILE, agent_id=HOSTILE)
    for name in ("stock", "search"):
        trace = with_call(
            trace, name, value={HOSTILE: [HOSTILE]}, name=HOSTILE, arguments=HOSTILE, requested=f"not {HOSTILE}"
        )
    for message in trace["executions"][0]["messages"]:
        message["parts"].append({"type": "text", "text": HOSTILE})
        message["role"] = HOSTILE
    page = show(trace)
    assert HOSTILE in page.text(".detail")
    for key in ("j", "j", "j", "2", "3", "1"):
        page.press(key)
    assert HOSTILE in page.text(".detail")
    assert page.evaluate(
        "window.owned === undefined && document.querySelectorAll('#app script, #app img').length === 0"
    )
    assert page.problems == []
    assert [address for address in page.requests if not address.startswith("file:")] == []


def test_the_policy_of_the_page_refuses_scripts_styles_and_connections(show: Show, order: Trace) -> None:
    """What would be injected after all does not run: only the built script and style are allowed, and no other address."""
    page = show(order)
    policy = page.evaluate("document.querySelector('meta[http-equiv]').content")
    assert "unsafe" not in policy
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.owned = 1'}))"
    )
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.owned = 1\">')")
    refused = page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', error => error.message)")
    assert refused != "sent"
    page.settle()
    assert page.evaluate("window.owned === undefined")
    refusals = [problem for problem in page.problems if "Content Security Policy" in problem]
    assert len(refusals) >= 3
    page.problems.clear()


def test_characters_that_cannot_be_seen_are_shown_as_escapes(show: Show, order: Trace) -> None:
    """Controls, characters that reorder or hide text and halves of pairs become escapes, in rows as well as in details."""
    text = "pay\u202eyap\u0000\u001b[31m\u200bhidden\u2066x\u2069\U000e0041 family \U0001f469\u200d\U0001f469 end\r\n"
    page = show(with_call(order, "stock", name="a\u202eb", value=text))
    assert "a\\u202eb" in rows(page)
    select(page, "a\\u202eb")
    detail = page.text(".detail")
    assert (
        "pay\\u202eyap\\0\\e[31m\\u200bhidden\\u2066x\\u2069\\u{e0041} family \U0001f469\u200d\U0001f469 end\\r"
        in detail
    )
    hidden = "\\u202e|\\u2066|\\u0000|\\u001b|\\u200b"
    assert page.evaluate(f"!/{hidden}/.test(document.getElementById('app').textContent)")
    assert "\\u202e" in page.texts(".escape")


def test_what_a_terminal_escapes_is_escaped_on_the_page(show: Show, order: Trace) -> None:
    """Every character that is not seen is an escape in texts of the page, as it is in a terminal; ordinary text and emoji are not."""
    kinds = {"Cc", "Cf", "Zl", "Zp", "Zs", "Co", "Cs"}
    unseen = [
        char
        for code, char in enumerate(map(chr, range(0x110000)))
        if (
            unicodedata.category(char) in kinds
            and (code < 0xE000 or code % 997 == 0 or unicodedata.category(char) == "Cf")
        )
        or "\ufe00" <= char <= "\ufe0f"
        or "\U000e0100" <= char <= "\U000e0110"
        or char in "\u034f\u115f\u1160\u17b4\u17b5\u180b\u2800\u3164\uffa0\U0001d159\U00016fe4"
    ]
    unseen = [char for char in unseen if char not in " \t\n" and not "\ud800" <= char <= "\udfff"]
    assert all(escape_invisible(char) != char for char in unseen)
    for start in range(0, len(unseen), 400):
        part = unseen[start : start + 400]
        page = show(with_call(order, "stock", value="x".join(part) + "x"))
        select(page, "stock")
        assert len(page.texts(".detail .escape")) == len(part)
    ordinary = "caf\u00e9 \u2764\ufe0f \U0001f468\u200d\U0001f469 \u0645\u06cc\u200c\u062e \u0915\u094d\u200d\u0937 \u4e2d\u6587"
    page = show(with_call(order, "stock", value=ordinary))
    select(page, "stock")
    assert page.texts(".detail .escape") == []


def test_a_result_of_20_megabytes_is_cut_and_shown_as_lines(show: Show, order: Trace) -> None:
    """A long text costs the page little: a part is shown, all of it in a list of which only what is in view exists."""
    lines = "".join([f"line {number}: {'x' * 84}\n" for number in range(200_000)]) + "the end"
    assert len(lines) > 19_000_000
    page = show(with_call(order, "stock", value=lines))
    select(page, "stock")
    assert page.evaluate("document.getElementById('app').textContent.length") < 20_000
    page.click("button.link", "Show all")
    assert page.evaluate("document.querySelectorAll('.lines .line').length") < 80
    page.evaluate("document.querySelector('.lines .virtual').scrollTop = 1e9")
    page.wait_for("document.querySelector('.lines').innerText.includes('the end')")
    page.press("/")
    page.type("line 150000:")
    page.wait_for("document.querySelector('.search output')?.innerText === '1 found'")


def test_a_trace_of_a_later_version_is_refused(show: Show, order: Trace) -> None:
    """The page says which versions it reads, instead of showing half of a trace."""
    page = show({**order, "version": 2})
    assert "It has version 2" in page.text("[role=alert]")


# --- many steps -------------------------------------------------------------------------------------------------------


def test_thousands_of_steps_are_in_the_page_only_where_they_are_in_view(show: Show) -> None:
    """Every view of a long run has few elements; the keyboard, the search and the filters reach its end."""
    page = show(long_trace(2000))
    assert page.evaluate("document.querySelectorAll('.row').length") < 60
    page.press("G")
    assert page.text(".row.selected .title") == "weigh"
    assert page.evaluate("document.querySelectorAll('.row').length") < 60
    page.press("/")
    page.type("item 1777-3")
    page.wait_for("document.querySelector('.search output')?.innerText === '2 found'")
    page.press("Enter")
    assert "long/1777/0" in page.text(".detail")
    page.press("Escape", "2")
    page.wait_for("document.querySelector('.conversation').innerText.includes('I check shelf 1777')")
    assert page.evaluate("document.querySelectorAll('.message').length") < 40
    page.press("1")
    page.click(".filters .chip", "failed")
    assert rows(page)[:3] == ["agent_1", "Step 50", "count"]


def test_a_narrow_window_has_the_details_below(browser: Browser, show: Show, order: Trace) -> None:
    """On a small screen both panes are above each other, and nothing is wider than the screen."""
    page = show(order)
    page.resize(520, 800)
    page.settle()
    panes = page.evaluate("[...document.querySelectorAll('.pane')].map(pane => pane.getBoundingClientRect().width)")
    assert panes == [520, 520]
    assert page.evaluate("document.documentElement.scrollWidth") == 520
