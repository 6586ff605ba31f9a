# The commands for people. Each target sets up its needs by itself and reports its progress. The work is in
# tests/scripts/; each file there begins with its purpose.
#
#   PG_CONFIG=/path/to/pg_config   the server of install, package and deb
#   PG_VERSIONS="15 18"            the server versions of setup, test and test-matrix
#   ARGS="..."                     further arguments for demo, bench, psql, test-matrix, test-assert and test-long

SCRIPTS := tests/scripts
export PG_CONFIG PG_VERSIONS QUICK

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-db test-e2e test-client test-matrix test-languages test-pictures test-package test-assert test-long bench install lint docs package deb psql psql-stop

help: ## lists the targets
	@echo "pg_once: retries that converge. make ..."
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

setup: ## installs missing tools: Rust, cargo-pgrx, PostgreSQL servers (all of it under target/ where that is possible)
	@bash $(SCRIPTS)/setup.sh $(PG_VERSIONS)

demo: ## orders, jobs, receipts, fundings, growth under kills, naive and with pg_once: tables, target/demo/report.html
	@bash $(SCRIPTS)/program.sh demo $(ARGS)

test: ## lints and all tests, on one server version (PG_VERSIONS=18); about 10 minutes
	@bash $(SCRIPTS)/test.sh

test-db: ## the in-database tests alone
	@bash $(SCRIPTS)/test.sh db

test-e2e: ## the end-to-end tests alone: races, crashes, poolers, dump and restore
	@bash $(SCRIPTS)/test.sh e2e

test-client: ## the client's unit tests, doctests and examples alone
	@bash $(SCRIPTS)/test.sh unit client

test-matrix: ## the other server versions, PgBouncer, the release build, other languages, pictures, packages; about 10 minutes
	@bash $(SCRIPTS)/test-matrix.sh $(ARGS)

test-languages: ## the example programs in Python, Node and Java alone, killed and raced
	@bash $(SCRIPTS)/test-matrix.sh languages

test-pictures: ## mermaid blocks of the book and machine_diagram's answers, drawn in a browser, alone
	@bash $(SCRIPTS)/test-matrix.sh pictures

test-package: ## the tarball and, as root on Debian, the Debian package: installed, used, upgraded, removed
	@bash $(SCRIPTS)/test-matrix.sh package

test-assert: ## the end-to-end tests on a PostgreSQL 15 built with assertions; no server may log an error of its own (ARGS="--test keys")
	@bash $(SCRIPTS)/test-assert.sh $(ARGS)

test-long: ## the full forms of the slow tests: 100 kills, ten failovers, ten million rows, moves of 16 shards, faults, reaping beside claims, counters, an idle janitor, assertions (hours; ARGS="kills reaping")
	@bash $(SCRIPTS)/test-long.sh $(ARGS)

bench: ## pgbench against raw SQL in the same run: a table, and JSON under target/bench/ (QUICK=1: a few minutes)
	@bash $(SCRIPTS)/program.sh bench $(if $(QUICK),--quick) $(ARGS)

install: ## builds (release) and installs into a server: make install PG_CONFIG=/path/to/pg_config
	@bash $(SCRIPTS)/install.sh

lint: ## formatting, clippy, shellcheck, pgspot and rustdoc; any finding fails
	@bash $(SCRIPTS)/lint.sh

docs: ## the generated parts of docs/reference, and the book in target/book
	@bash $(SCRIPTS)/docs.sh

package: ## a tarball for one server version in target/package/ (PG_CONFIG=...)
	@bash $(SCRIPTS)/package.sh tarball

deb: ## a Debian package for one server version in target/package/ (PG_CONFIG=...)
	@bash $(SCRIPTS)/package.sh deb

psql: ## psql in a private cluster that has the extension (its data stay in target/)
	@bash $(SCRIPTS)/psql.sh $(ARGS)

psql-stop: ## stops the cluster of make psql
	@bash $(SCRIPTS)/psql.sh stop
