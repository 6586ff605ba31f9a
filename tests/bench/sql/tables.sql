-- The same table for every side: columns, defaults, checks and indexes of once.key.
CREATE SCHEMA raw;
CREATE TABLE raw.key (LIKE once.key INCLUDING ALL);
CREATE SCHEMA plpgsql;
CREATE TABLE plpgsql.key (LIKE once.key INCLUDING ALL);
CREATE SCHEMA application;
CREATE TABLE application.key (LIKE once.key INCLUDING ALL);
