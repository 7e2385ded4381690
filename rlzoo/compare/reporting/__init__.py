"""From finished runs to statistics, verdicts, figures and a page."""
