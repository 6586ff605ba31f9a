-- A table whose machine has names that mermaid cannot take as they are.
CREATE TABLE odd (id int PRIMARY KEY, "Größe" int, status text NOT NULL);
