# Aliases of the two commands of the README.
.PHONY: quickstart test
quickstart:
	./scripts/quickstart.sh
test:
	./scripts/test.sh
