-- The same table for every side: columns, defaults and indexes of once.key. Without its CHECKs, which pg_once's own
-- writes do not evaluate.
CREATE SCHEMA raw;
CREATE TABLE raw.key (LIKE once.key INCLUDING ALL EXCLUDING CONSTRAINTS);
CREATE SCHEMA plpgsql;
CREATE TABLE plpgsql.key (LIKE once.key INCLUDING ALL EXCLUDING CONSTRAINTS);
CREATE SCHEMA application;
CREATE TABLE application.key (LIKE once.key INCLUDING ALL EXCLUDING CONSTRAINTS);
