"""Colours and layout. The colours are the terminal's own sixteen, so that they suit light and dark ones alike."""

from __future__ import annotations

from textual.theme import Theme

TERMINAL = Theme(
    name="terminal",
    ansi=True,
    primary="ansi_blue",
    secondary="ansi_cyan",
    warning="ansi_magenta",
    error="ansi_red",
    success="ansi_green",
    accent="ansi_green",
    foreground="ansi_default",
    background="ansi_default",
    surface="ansi_default",
    panel="ansi_default",
    boost="ansi_default",
    variables={
        "ansi-background": "ansi_black",
        "ansi-foreground": "ansi_white",
        "block-cursor-foreground": "ansi_default",
        "block-cursor-background": "ansi_default",
        "block-cursor-text-style": "reverse",
        "input-cursor-background": "ansi_default",
        "input-cursor-foreground": "ansi_default",
        "input-cursor-text-style": "reverse",
        "input-selection-background": "ansi_default",
        "input-selection-foreground": "ansi_default",
        "border": "ansi_default",
        "border-blurred": "ansi_default",
    },
)

CSS = """
Screen, ModalScreen { layout: vertical; background: ansi_default; color: ansi_default; overflow: hidden; }
Static { height: 1; width: 100%; }
#body { height: 1fr; width: 100%; }
#body Table { width: 1fr; height: 100%; display: none; }
#body Table.shown { display: block; }
#details { width: 42%; height: 100%; display: none; padding: 0 0 0 1; }
.wide #details { display: block; border-left: solid ansi_default; }
.wide #details:focus { border-left: heavy ansi_default; }
.wide.folded #details { display: none; }
.narrow.detailed #details { display: block; width: 100%; padding: 0 0 0 2; }
.narrow.detailed #body Table { display: none; }
#message, #filter-line { display: none; }
#message.shown, #filter-line.shown { display: block; }
#filter-line { height: 1; }
#filter-label { width: 8; text-style: bold; }
#filter { width: 1fr; }
Input { height: 1; border: none; padding: 0; }
Page { height: 1fr; width: 100%; overflow-y: auto; overflow-x: auto; }
Table { overflow-x: hidden; scrollbar-size: 1 1; }
Page { scrollbar-size: 1 1; scrollbar-gutter: stable; }
Table, Page {
    scrollbar-background: ansi_default; scrollbar-background-hover: ansi_default;
    scrollbar-background-active: ansi_default; scrollbar-corner-color: ansi_default;
    scrollbar-color: ansi_bright_black; scrollbar-color-hover: ansi_bright_black;
    scrollbar-color-active: ansi_bright_black;
}
Menu, Form, Quit { align: center middle; }
.box { width: 90%; max-width: 100; height: auto; max-height: 90%; border: solid ansi_default; padding: 0 1; }
.box Table { height: auto; }
PlanPage Page, ProgressPage Page, Help Page { padding: 0 1; }
PlanPage #state, ProgressPage #state { text-style: bold; }
"""
