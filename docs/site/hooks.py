"""Turns the formulas that arithmatex has marked into MathML, which browsers show without a script."""
import html
import re

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)


UNKNOWN = re.compile(r">\s*(\\[A-Za-z]+|&(?:amp;)?(?=<))")  # the converter copies names that it does not know, and lost &


def mathml(match):
    display = "block" if match[2] == "[" else "inline"
    text = html.unescape(match[3]).strip().replace("{aligned}", "{split}")  # the converter's name for it
    formula = convert(text, display=display)
    if unknown := UNKNOWN.search(formula):
        raise RuntimeError(f"{match[3]}: unknown {unknown[1]}")
    return f'<div class="formula">{formula}</div>' if display == "block" else formula


def on_page_content(content, page, **_):
    content = FORMULA.sub(mathml, content)
    if 'class="arithmatex"' in content:
        raise RuntimeError(f"{page.file.src_path}: a formula of another form than $...$ or ```math")
    return content
