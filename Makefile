.PHONY: format lint type test check

format:  ## rewrite what can be rewritten
	ruff format .
	ruff check --fix .

lint:  ## style, import contracts, the license and the wheel
	ruff check .
	ruff format --check .
	lint-imports
	python -m pytest tests/house/test_house.py

type:  ## strict types of the package
	mypy

test:  ## all tests
	python -m pytest

check: lint type test  ## everything, in the order of .ci/run
